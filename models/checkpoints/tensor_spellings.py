"""The same tensors under other names: wrappers in front of them, and a shared table under the head's name alone.

What wraps a model when it is saved (torch.compile, DataParallel, PEFT, a multimodal model's text part) only puts words
in front of its tensors' names, and AutoModel takes one away. Such a checkpoint is complete and is read; names that say
anything else come back as they are, to be refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from blockexport.models.checkpoints.checkpoint import TensorEntry
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import FAMILIES

WRAPPERS: Mapping[str, str] = {
    "model": "transformers, around the decoder",
    "base_model": "PEFT, and transformers' name for what a task's class wraps",
    "module": "DataParallel and DistributedDataParallel",
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FullyShardedDataParallel",
    "_checkpoint_wrapped_module": "activation checkpointing",
    "_forward_module": "Lightning Fabric and DeepSpeed",
    "transformer": "the decoder's name in GPT-2 and its descendants",
    "decoder": "the decoder's name in fairseq and NeMo",
    "backbone": "trainers that put a head of their own on top",
    "language_model": "the text part of a multimodal model",
    "text_model": "the text part of a multimodal model",
    "llm": "the text part of a multimodal model",
}
"""Words that may stand in front of a tensor's name and say nothing about the tensor, and who puts them there."""

_TRANSPARENT = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"))
"""Wrappers of any module, which may stand in the middle of a name too."""

_OUTSIDE_LAYERS = ("embed_tokens", "embed_positions", "norm", "rotary_emb")
_HEAD = OUTPUT_HEAD.partition(".")[0]


@dataclass(frozen=True)
class Spelled:
    """Tensors under Hugging Face names as far as theirs are understood, and what the user should know about that."""

    entries: dict[str, TensorEntry]
    notes: tuple[str, ...] = ()


def in_hugging_face_names(stored: Mapping[str, TensorEntry], config: ModelConfig, where: str) -> Spelled:
    """The tensors `stored`, by the names of their file, under the names transformers gives them.

    Args:
        stored: what the files hold.
        config: says whether embedding and head are one table.
        where: the checkpoint, for messages.

    Raises:
        UsageError: two tensors would get the same name.
    """
    family = FAMILIES[config.model_type]
    usual = {name: usual_name(name, family.tensor_names) for name in stored}
    spelled = _names(usual.values())
    names = {name: spelled[new] for name, new in usual.items()}
    entries: dict[str, TensorEntry] = {}
    for name, entry in stored.items():
        new = names[name]
        if new in entries:
            raise UsageError(
                f"{where} holds {new} more than once: as {entries[new].stored_name or new} and as {name}. "
                "Keep the copy that is meant"
            )
        entries[new] = entry if new == name else replace(entry, name=new, stored_name=name)
    notes = _notes(entries)
    if config.tie_word_embeddings and EMBEDDING not in entries and OUTPUT_HEAD in entries:
        head = entries.pop(OUTPUT_HEAD)
        kept = head.stored_name or OUTPUT_HEAD
        entries[EMBEDDING] = replace(head, name=EMBEDDING, stored_name=kept)
        notes.append(f"the table that embedding and head share is stored once, as {kept}")
    return Spelled(entries, tuple(notes))


def usual_name(name: str, tensor_names: Mapping[str, str]) -> str:
    """A tensor by the names that its modules have in other families."""
    for own, usual in tensor_names.items():
        name = f".{name}.".replace(f".{own}.", f".{usual}.", 1)[1:-1]
    return name


def own_name(name: str, tensor_names: Mapping[str, str]) -> str:
    """What the checkpoints of a family call a tensor that has its usual name: what `usual_name` reads back."""
    return usual_name(name, {usual: own for own, usual in tensor_names.items()})


def _names(stored: Iterable[str]) -> dict[str, str]:
    """File name to Hugging Face name; every name stays as it is where the layers have no one prefix of wrappers.

    A few tensors of layers under another prefix are no second set: they keep their names, and are told to be left over.
    """
    split = {name: _without_wrappers(name.split(".")) for name in stored}
    prefixes = Counter(prefix for prefix, rest in split.values() if rest[0] == "layers").most_common()
    if not prefixes or (len(prefixes) > 1 and 2 * prefixes[1][1] > prefixes[0][1]):
        return {name: name for name in split}
    others = {prefix for prefix, _ in prefixes[1:]}
    return {
        name: name if rest[0] == "layers" and prefix in others else _name(rest) or name
        for name, (prefix, rest) in split.items()
    }


def _without_wrappers(words: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """The wrappers in front, and the rest; those that may wrap any module are left out of both."""
    left = [word for word in words if word not in _TRANSPARENT] or list(words)
    count = next((i for i, word in enumerate(left[:-1]) if word not in WRAPPERS), len(left) - 1)
    return tuple(left[:count]), left[count:]


def _name(rest: Sequence[str]) -> str | None:
    if rest[0] == _HEAD:
        return ".".join(rest)
    if rest[0] in _OUTSIDE_LAYERS or (rest[0] == "layers" and len(rest) > 2 and rest[1].isdecimal()):
        return ".".join(("model", *rest))
    return None


def _notes(entries: Mapping[str, TensorEntry]) -> list[str]:
    renamed = [(name, entry.stored_name) for name, entry in entries.items() if entry.stored_name is not None]
    if not renamed:
        return []
    name, stored = next((pair for pair in renamed if ".layers." in pair[0]), renamed[0])
    return [f"{len(renamed)} tensors have other names in the checkpoint: {stored} is read as {name}, and so on"]
