"""How a text becomes an embedding, as a folder of sentence-transformers' says: `modules.json` and what it names.

The files are those of https://github.com/huggingface/sentence-transformers, with the keys of its early releases
(`pooling_mode_*`) and those of release 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blockexport.models.config.config_fields import RawFields
from blockexport.models.errors import UsageError
from blockexport.models.interface import Pooling
from blockexport.models.regular_file import is_there, no_repeated_key, read_json, read_json_object
from blockexport.models.strict_json import shown

MODULES = "modules.json"
_REMEDY = "fetch the file again"
_OWN = "sentence_transformers."
_MODES = {"lasttoken": Pooling.LAST, "mean": Pooling.MEAN}
_LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_TEXT_MODALITY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}


@dataclass(frozen=True)
class SaidEmbedding:
    """What a folder says of its embeddings.

    Attributes:
        pooling: what they are made of.
        normalize: whether they are brought to length 1.
        longest: tokens to which texts are cut; None where nothing is said.
        notes: what the user should know, a sentence each.
    """

    pooling: Pooling
    normalize: bool
    longest: int | None = None
    notes: tuple[str, ...] = ()


def read_embedding(folder: Path, hidden_size: int) -> SaidEmbedding | None:
    """What a folder's files say; None where it has no `modules.json`.

    Args:
        folder: of a Hugging Face model.
        hidden_size: D of its decoder.

    Raises:
        UsageError: a file is damaged, or says something that cannot be exported.
    """
    path = folder / MODULES
    if not is_there(path):
        return None
    modules = _modules(path)
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UsageError(
            f"{path} lists {', '.join(kinds) or 'no modules'}, and what can be exported is Transformer, Pooling and "
            "perhaps Normalize: say --pooling last or mean for what comes before the others, and run those yourself"
        )
    if modules[0][1] != folder:
        raise UsageError(
            f"{path}: the Transformer is in {modules[0][1]}: give that folder, with --pooling last or mean"
        )
    pooling = _pooling(modules[1][1], hidden_size)
    normalize = len(modules) > 2
    if normalize:
        _check_normalize(modules[2][1])
    return SaidEmbedding(pooling, normalize, _longest(folder), _notes(folder))


def _modules(path: Path) -> list[tuple[str, Path]]:
    """The class of each module in order, and its folder."""
    data = read_json(path, _REMEDY, no_repeated_key)
    if not isinstance(data, list) or not all(isinstance(entry, Mapping) for entry in data):
        raise UsageError(f"{path} is no list of modules: {_REMEDY}")
    found = []
    for entry in data:
        fields = RawFields(entry, str(path))
        place, kind = fields.text("path"), fields.text("type")
        fields.used |= {"idx", "name"}
        fields.only("kwargs", (None, [], {}), "they are arguments for the module's code")
        if unused := fields.unused():
            raise fields.unknown(" key of a module", unused)
        if not kind.startswith(_OWN):
            raise UsageError(
                f"{path}: {shown(kind)} is code of the model's own, which is not run: say --pooling last or mean"
            )
        if place not in ("", ".") and Path(place).name != place:
            raise UsageError(f"{path}: the module's path {shown(place)} is no folder beside the file")
        found.append((kind.rpartition(".")[2], path.parent / place))
    return found


def _fields(path: Path) -> RawFields | None:
    return RawFields(read_json_object(path, _REMEDY, no_repeated_key), str(path)) if is_there(path) else None


def _pooling(folder: Path, hidden_size: int) -> Pooling:
    path = folder / "config.json"
    fields = _fields(path)
    if fields is None:
        raise UsageError(f"{path} is missing, and {MODULES} names it: fetch the model again")
    for key in ("word_embedding_dimension", "embedding_dimension"):
        fields.only(key, (None, hidden_size), "that is the width of the model's states")
    fields.only("include_prompt", (None, True), "a prompt's tokens are pooled like all others")
    legacy = [mode for key, mode in _LEGACY.items() if fields.flag(key, False)]
    fields.used.add("pooling_mode")
    said = fields.get("pooling_mode")
    modes = legacy or ["mean"] if said is None else said if isinstance(said, list) else [said]
    if unused := fields.unused():
        raise fields.unknown(" key", unused)
    if len(modes) != 1 or not isinstance(modes[0], str) or modes[0] not in _MODES:
        raise fields.error(f"pooling by {', '.join(map(str, modes))} cannot be exported, only {' or '.join(_MODES)}")
    return _MODES[modes[0]]


def _check_normalize(folder: Path) -> None:
    fields = _fields(folder / "config.json")
    if fields is None:
        return
    for key in ("module_input_name", "module_output_name"):
        fields.only(key, (None, "sentence_embedding"), "another value would be normalised")
    if unused := fields.unused():
        raise fields.unknown(" key", unused)


def _longest(folder: Path) -> int | None:
    fields = _fields(folder / "sentence_bert_config.json")
    if fields is None:
        return _tokenizers_longest(folder)
    fields.only("do_lower_case", (None, False), "texts would have to be in lower case")
    fields.only("transformer_task", (None, "feature-extraction"), "states are made in another way")
    fields.only("modality_config", (None, _TEXT_MODALITY), "texts alone are embedded, and by the plain forward pass")
    fields.only("module_output_name", (None, "token_embeddings"), "another output would be pooled")
    fields.only("processing_kwargs", (None, {}), "texts would be prepared in another way")
    for key in ("query_length", "document_length", "query_expansion", "tokenizer_name_or_path"):
        fields.only(key, (None,), "texts would be prepared in another way")
    fields.used |= {"unpad_inputs", "max_seq_length"}  # how batches are packed, which changes no embedding
    if unused := fields.unused():
        raise fields.unknown(" key", unused)
    return fields.integer("max_seq_length") if fields.get("max_seq_length") is not None else _tokenizers_longest(folder)


def _tokenizers_longest(folder: Path) -> int | None:
    """Where release 6 saves it; transformers writes 1e30 or so where there is no such length."""
    fields = _fields(folder / "tokenizer_config.json")
    length = None if fields is None else fields.get("model_max_length")
    return length if type(length) is int and length > 0 else None


def _notes(folder: Path) -> tuple[str, ...]:
    fields = _fields(folder / "config_sentence_transformers.json")
    if fields is None:
        return ()
    fields.only("model_type", (None, "SentenceTransformer"), "it is another kind of model")
    fields.only("truncate_dim", (None,), "an embedding would be cut, after it was normalised")
    fields.used |= {"__version__", "similarity_fn_name", "requirements", "prompts", "default_prompt_name"}
    if unused := fields.unused():
        raise fields.unknown(" key", unused)
    prompts = fields.get("prompts")
    named = [name for name, text in prompts.items() if text] if isinstance(prompts, Mapping) else []
    usual = fields.get("default_prompt_name")
    said = [f"the model has prompts ({', '.join(map(str, named))}), which your program puts in front of its texts"]
    said += [f"sentence-transformers puts the prompt {shown(usual)} in front of every text by itself"] if usual else []
    return tuple(said) if named else ()
