"""The tokens of a GGUF file's tokenizer, with every key of its metadata accounted for.

Key reference: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section "Tokenizer".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from blockexport.models.errors import UsageError

# Of `tokenizer.*`: what is read below, and what says nothing about how the decoder's text becomes ids.
_USED_KEYS = frozenset(
    f"tokenizer.ggml.{name}"
    for name in (
        *("model", "pre", "tokens", "token_type", "scores", "merges"),
        *(f"{kind}_token_id" for kind in ("bos", "eos", "eot", "eom", "unknown", "padding")),
        *("add_bos_token", "add_eos_token", "add_space_prefix"),
    )
) | {"tokenizer.chat_template", "tokenizer.chat_templates"}
_HARMLESS_KEYS: Mapping[str, str] = {
    "token_type_count": "segment ids of encoders",
    "seperator_token_id": "encoders",
    "cls_token_id": "encoders",
    "mask_token_id": "encoders",
    "prefix_token_id": "fill-in-the-middle marker, an ordinary control token here",
    "suffix_token_id": "fill-in-the-middle marker",
    "middle_token_id": "fill-in-the-middle marker",
    **{f"fim_{part}_token_id": "fill-in-the-middle marker" for part in ("pre", "suf", "mid", "pad", "rep", "sep")},
}
# Flags that change the ids when set, and are not implemented.
_MUST_BE_FALSE = ("add_sep_token", "remove_extra_whitespaces", "normalizer.lowercase", "normalizer.strip_accents")


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The metadata every kind needs, checked."""

    tokens: list[str]
    types: list[int]
    ids: dict[str, int]
    bos: int | None
    eos: int | None
    unk: int | None
    pad: int | None
    add_bos: bool
    add_eos: bool

    def text(self, token_id: int | None) -> str | None:
        return None if token_id is None else self.tokens[token_id]


def refuse_unknown_keys(metadata: Mapping[str, Any]) -> None:
    for key in metadata:
        if not key.startswith("tokenizer.") or key in _USED_KEYS or key.startswith("tokenizer.chat_template."):
            continue
        name = key.removeprefix("tokenizer.ggml.")
        if name in _HARMLESS_KEYS or (name in _MUST_BE_FALSE and not metadata[key]):
            continue
        raise UsageError(
            f"the GGUF file's key {key} (value {str(metadata[key])[:40]!r}) may change how text becomes ids and is not "
            "implemented: export from the model's safetensors folder, which has its own tokenizer"
        )


def read_vocabulary(
    metadata: Mapping[str, Any], default_add_bos: bool, default_ids: Mapping[str, int] | None = None
) -> Vocabulary:
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(array(metadata, "tokens", None))]
    types = [int(kind) for kind in metadata.get("tokenizer.ggml.token_type", [TokenType.NORMAL] * len(tokens))]
    if len(types) != len(tokens):
        raise UsageError(f"the GGUF file has {len(tokens)} tokens and {len(types)} token types: the file is damaged")
    ids: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        if ids.setdefault(token, token_id) != token_id:
            raise UsageError(
                f"the GGUF file's token {token!r} has the ids {ids[token]} and {token_id}: a tokenizer needs one each"
            )

    def special(name: str) -> int | None:
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id", (default_ids or {}).get(name))
        if token_id is not None and not 0 <= token_id < len(tokens):
            raise UsageError(
                f"the GGUF file's {name}_token_id is {token_id}, and its ids end at {len(tokens) - 1}: the file is "
                "damaged, or its metadata was edited"
            )
        return None if token_id is None else int(token_id)

    bos, eos = special("bos"), special("eos")
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", default_add_bos))
    add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    for flag, required, name in ((add_bos, bos, "bos"), (add_eos, eos, "eos")):
        if flag and required is None:
            raise UsageError(f"the GGUF file wants a {name} token added and has no tokenizer.ggml.{name}_token_id")
    return Vocabulary(tokens, types, ids, bos, eos, special("unknown"), special("padding"), add_bos, add_eos)


def array(metadata: Mapping[str, Any], name: str, length: int | None) -> list[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if values is None:
        raise UsageError(f"the GGUF file has no tokenizer.ggml.{name}: its tokenizer cannot be rebuilt")
    if length is not None and len(values) != length:
        raise UsageError(f"the GGUF file has {length} tokens and {len(values)} {name}: the file is damaged")
    return list(values)
