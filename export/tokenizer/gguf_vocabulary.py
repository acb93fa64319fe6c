"""The tokens of a GGUF file's tokenizer, with every key of its metadata accounted for.

Key reference: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section "Tokenizer".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from blockexport.models.config.config_fields import Item, RawFields
from blockexport.models.errors import UsageError
from blockexport.models.strict_json import shown

_PREFIX = "tokenizer.ggml."

# Of `tokenizer.*`: what is read below, and what says nothing about how the decoder's text becomes ids.
_USED_KEYS = frozenset(
    f"{_PREFIX}{name}"
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


def refuse_unknown_keys(fields: RawFields) -> None:
    for key in fields.data:
        if not key.startswith("tokenizer.") or key in _USED_KEYS or key.startswith("tokenizer.chat_template."):
            continue
        name = key.removeprefix(_PREFIX)
        if name in _HARMLESS_KEYS or (name in _MUST_BE_FALSE and not fields.flag(key, False)):
            continue
        raise UsageError(
            f"the GGUF file's key {key} (value {shown(fields.get(key))}) may change how text becomes ids and is not "
            "implemented: export from the model's safetensors folder, which has its own tokenizer"
        )


def read_vocabulary(
    fields: RawFields, default_add_bos: bool, default_ids: Mapping[str, int] | None = None
) -> Vocabulary:
    stated = fields.items(f"{_PREFIX}tokens", str)
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(stated)]
    types = one_each(fields, "token_type", int, tokens, [int(TokenType.NORMAL)] * len(tokens))
    ids: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        if ids.setdefault(token, token_id) != token_id:
            raise UsageError(
                f"the GGUF file's token {token!r} has the ids {ids[token]} and {token_id}: a tokenizer needs one each"
            )

    def special(name: str) -> int | None:
        token_id = fields.optional_integer(f"{_PREFIX}{name}_token_id", (default_ids or {}).get(name), minimum=0)
        if token_id is not None and token_id >= len(tokens):
            raise UsageError(
                f"the GGUF file's {name}_token_id is {token_id}, and its ids end at {len(tokens) - 1}: the file is "
                "damaged, or its metadata was edited"
            )
        return token_id

    bos, eos = special("bos"), special("eos")
    add_bos = fields.flag(f"{_PREFIX}add_bos_token", default_add_bos)
    add_eos = fields.flag(f"{_PREFIX}add_eos_token", False)
    for flag, required, name in ((add_bos, bos, "bos"), (add_eos, eos, "eos")):
        if flag and required is None:
            raise UsageError(f"the GGUF file wants a {name} token added and has no tokenizer.ggml.{name}_token_id")
    return Vocabulary(tokens, types, ids, bos, eos, special("unknown"), special("padding"), add_bos, add_eos)


def one_each(
    fields: RawFields, name: str, kind: type[Item], tokens: list[str], default: list[Item] | None = None
) -> list[Item]:
    """The values of a key that has one for every token."""
    values = fields.items(f"{_PREFIX}{name}", kind, default)
    if len(values) != len(tokens):
        what = name.replace("_", " ").removesuffix("s") + "s"
        raise UsageError(f"the GGUF file has {len(tokens)} tokens and {len(values)} {what}: the file is damaged")
    return values
