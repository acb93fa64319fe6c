"""Rebuild a Hugging Face tokenizer (`tokenizer.json` and its companions) out of a GGUF file's metadata.

A GGUF file carries tokens, scores or merges, and the *name* of a pre-tokenizer; how text is cut before merging is in
the reader's code, so the names known here are a table and any other name is refused. Two kinds exist in the families
this project reads:

- `gpt2`: byte-level BPE with explicit merges.
- `llama`: SentencePiece BPE. The file has scores in place of merges: llama.cpp joins the neighbouring pieces whose
  union has the highest score, the leftmost on a tie. The same order as a merge list: every way to split a piece into
  two pieces, sorted by the piece's score, as in Hugging Face's converter. Only a tie can come out otherwise: it goes
  to the pair listed first, not to the leftmost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from blockexport.export.bundle.generation_config import greedy_config
from blockexport.export.bundle.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from blockexport.export.tokenizer.gguf_vocabulary import (
    TokenType,
    Vocabulary,
    one_each,
    read_vocabulary,
    refuse_unknown_keys,
)
from blockexport.models.config.config_fields import RawFields
from blockexport.models.errors import UsageError

Json = dict[str, Any]

# Control tokens that end a turn or a document by their text, whatever the file names as its EOS: older files of chat
# models name only the end of a document.
_END_TEXTS = frozenset(("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>"))


def rebuild_tokenizer(metadata: Mapping[str, Any]) -> dict[str, Json]:
    """The tokenizer of a GGUF file as Hugging Face files: file name to JSON value.

    Args:
        metadata: every key and decoded value of the file's header.

    Returns:
        `tokenizer.json`, `tokenizer_config.json` (with the chat template) and `generation_config.json`.

    Raises:
        UsageError: a kind of tokenizer, pre-tokenizer or key that is not known, named; or contradictory values.
    """
    fields = RawFields(metadata, "the GGUF file's tokenizer")
    refuse_unknown_keys(fields)
    model = fields.text("tokenizer.ggml.model", "none")
    if model == "gpt2":
        name = fields.text("tokenizer.ggml.pre", "none")
        if name not in PRE_TOKENIZERS:
            raise UsageError(
                f"the GGUF file's pre-tokenizer (tokenizer.ggml.pre) is {name!r}, and the known ones are "
                f"{', '.join(PRE_TOKENIZERS)}: export from the model's safetensors folder, which has its own tokenizer"
            )
        pre = PRE_TOKENIZERS[name]
        vocabulary = read_vocabulary(fields, default_add_bos=pre.add_bos_token)
        tokenizer = _byte_level_tokenizer(fields, vocabulary, pre)
    elif model == "llama":
        vocabulary = read_vocabulary(fields, default_add_bos=True, default_ids={"bos": 1, "eos": 2, "unknown": 0})
        tokenizer = _sentencepiece_tokenizer(fields, vocabulary)
    else:
        raise UsageError(
            f"the GGUF file's tokenizer (tokenizer.ggml.model) is {model!r}, and the known ones are gpt2 and llama: "
            "export from the model's safetensors folder, which has its own tokenizer"
        )
    return {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": _tokenizer_config(fields, vocabulary),
        "generation_config.json": _generation_config(fields, vocabulary),
    }


def _byte_level_tokenizer(fields: RawFields, vocabulary: Vocabulary, pre: PreTokenizer) -> Json:
    merges: list[list[str]] = []
    for line in dict.fromkeys(fields.items("tokenizer.ggml.merges", str)):
        # The first space may itself be the left half.
        at = line.find(" ", 1)
        pair = [line[:at], line[at + 1 :]]
        if at < 0 or any(part not in vocabulary.ids for part in (*pair, "".join(pair))):
            raise UsageError(f"the GGUF file's merge {line!r} has a part that is no token: the file is damaged")
        merges.append(pair)
    cuts = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in pre.patterns]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return _tokenizer_json(
        vocabulary,
        normalizer={"type": "NFC"} if pre.nfc else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [*cuts, byte_level]},
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        model=_bpe(vocabulary, merges, ignore_merges=pre.ignore_merges),
    )


def _sentencepiece_tokenizer(fields: RawFields, vocabulary: Vocabulary) -> Json:
    scores = one_each(fields, "scores", float, vocabulary.tokens)
    if any(map(math.isnan, scores)):
        raise fields.error("tokenizer.ggml.scores holds values that are no numbers, which give merges no order")
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    normalizer: Json = space
    if fields.flag("tokenizer.ggml.add_space_prefix", True):
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]}
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _tokenizer_json(
        vocabulary,
        normalizer=normalizer,
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
        model=_bpe(vocabulary, merges_from_scores(vocabulary.tokens, vocabulary.types, scores), fallback=True),
    )


def merges_from_scores(tokens: list[str], types: list[int], scores: list[float]) -> list[list[str]]:
    """The merge list that joins pieces in the order of their scores, highest first.

    Every split of a normal piece into two pieces is a merge. Among the splits of one piece the longest left half comes
    first: where two of them overlap, as in runs of one letter, that is nearly always the leftmost as well. Pieces of
    equal score follow by the lengths of their halves, then by id.
    """
    ids = {token: i for i, token in enumerate(tokens) if types[i] in (TokenType.NORMAL, TokenType.UNUSED)}
    ranked = [
        (-scores[token_id], -len(left), -len(right), token_id, ids[left], ids[right])
        for token, token_id in ids.items()
        for left, right in _splits(token)
        if left in ids and right in ids
    ]
    return [[tokens[left], tokens[right]] for *_, left, right in sorted(ranked)]


def _splits(token: str) -> Iterator[tuple[str, str]]:
    return ((token[:at], token[at:]) for at in range(1, len(token)))


def _bpe(
    vocabulary: Vocabulary, merges: list[list[str]], *, fallback: bool = False, ignore_merges: bool = False
) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": vocabulary.text(vocabulary.unk) if fallback else None,  # bytes are never unknown
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": fallback,
        "byte_fallback": fallback,
        "ignore_merges": ignore_merges,
        "vocab": vocabulary.ids,
        "merges": merges,
    }


def _tokenizer_json(vocabulary: Vocabulary, **parts: Any) -> Json:
    added = [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != TokenType.USER_DEFINED,
        }
        for token_id, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": parts["normalizer"],
        "pre_tokenizer": parts["pre_tokenizer"],
        "post_processor": _post_processor(vocabulary),
        "decoder": parts["decoder"],
        "model": parts["model"],
    }


def _post_processor(vocabulary: Vocabulary) -> Json | None:
    """BOS and EOS around the text, when the file says so."""
    before = [vocabulary.bos] if vocabulary.add_bos and vocabulary.bos is not None else []
    after = [vocabulary.eos] if vocabulary.add_eos and vocabulary.eos is not None else []
    if not before and not after:
        return None
    texts = {i: vocabulary.tokens[i] for i in (*before, *after)}

    def around(sequence: str, type_id: int) -> list[Json]:
        def special(token_id: int) -> Json:
            return {"SpecialToken": {"id": texts[token_id], "type_id": type_id}}

        middle = {"Sequence": {"id": sequence, "type_id": type_id}}
        return [*map(special, before), middle, *map(special, after)]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {text: {"id": text, "ids": [i], "tokens": [text]} for i, text in texts.items()},
    }


def _tokenizer_config(fields: RawFields, vocabulary: Vocabulary) -> Json:
    config: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": vocabulary.add_bos,
        "add_eos_token": vocabulary.add_eos,
        "clean_up_tokenization_spaces": False,
    }
    names = {"bos": vocabulary.bos, "eos": vocabulary.eos, "unk": vocabulary.unk, "pad": vocabulary.pad}
    config |= {f"{name}_token": vocabulary.tokens[i] for name, i in names.items() if i is not None}
    context = fields.optional_integer(f"{fields.get('general.architecture')}.context_length")
    if context is not None:
        config["model_max_length"] = context
    key, prefix = "tokenizer.chat_template", "tokenizer.chat_template."
    default = fields.text(key) if fields.has(key) else None
    named = {name.removeprefix(prefix): fields.text(name) for name in fields.data if name.startswith(prefix)}
    if named:
        templates = ({"default": default} if default is not None else {}) | named
        config["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    elif default is not None:
        config["chat_template"] = default
    return config


def _generation_config(fields: RawFields, vocabulary: Vocabulary) -> Json:
    others = (fields.optional_integer(f"tokenizer.ggml.{name}_token_id", minimum=0) for name in ("eot", "eom"))
    ends = [vocabulary.eos, *others]
    ends += [
        token_id
        for token_id, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind == TokenType.CONTROL and token in _END_TEXTS
    ]
    stops = list(dict.fromkeys(token_id for token_id in ends if token_id is not None))
    return greedy_config(vocabulary.bos, stops, vocabulary.pad)
