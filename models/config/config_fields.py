"""Typed reading of a mapping nobody has checked yet: a `config.json` or the metadata of a GGUF file.

Every getter either returns a value of the promised type and range or raises UsageError with the key, the value found,
what was expected, and the file. The keys asked for are remembered, so that the reader can name those it never used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from blockexport.models.errors import UsageError
from blockexport.models.strict_json import shown

Item = TypeVar("Item", int, float, str)

MAX_INTEGER = 2**31 - 1
MAX_LAYERS = 10_000

_ITEMS = {int: "whole numbers", float: "numbers with a fraction", str: "texts"}


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


def shortest_decimal(value: float) -> float:
    """The shortest decimal that rounds to the float32 a GGUF file stores: 1e-05 for 9.999999747378752e-06.

    The source's config said the decimal; with it the float64 reference is the same for both files.
    """
    if not 1e-37 < value < 1e38:
        return value
    stored = struct.pack("f", value)
    return next(near for digits in range(1, 18) if struct.pack("f", near := float(f"{value:.{digits}g}")) == stored)


class RawFields:
    """A raw mapping, the name of where it came from, and the keys that were read so far.

    Args:
        data: the mapping.
        where: its file, for messages.
        names: for keys that are asked for by other names than the mapping's, those of the mapping.
    """

    def __init__(self, data: Mapping[str, Any], where: str, names: Mapping[str, str] | None = None) -> None:
        self.where, self.names = where, names or {}
        own = {name: key for key, name in self.names.items()}
        for key, name in self.names.items():
            if key in data:
                raise self.error(f"{key} is {shown(data[key])}, and models of this type call it {name}; rename it")
        self.data = {own.get(name, name): value for name, value in data.items()} if own else data
        self.used: set[str] = set()

    def error(self, message: str) -> UsageError:
        """The error to raise, with the file in front."""
        return UsageError(f"{self.where}: {message}")

    def said(self, key: str) -> str:
        """What the file calls a key."""
        return self.names.get(key, key)

    def has(self, key: str) -> bool:
        """Whether the key is there at all, null included."""
        return key in self.data

    def told(self, key: str, value: Any) -> str:
        """`key is value`, for messages: a default is not passed off as something that the file states."""
        return f"{self.said(key)} is {shown(value)}" + (
            "" if self.has(key) else " (the default, as the file does not state it)"
        )

    def get(self, key: str) -> Any:
        """The raw value (None when absent or null), marked as used."""
        self.used.add(key)
        return self.data.get(key)

    def _checked(self, key: str, default: Any, is_good: Callable[[Any], bool], what: str) -> Any:
        """The value, or the default where the key is absent. Without a default the key must be there."""
        self.used.add(key)
        if not self.has(key):
            if default is None:
                raise self.error(f"the key {self.said(key)!r} is missing; it must be {what}")
            return default
        value = self.data[key]
        if not is_good(value):
            raise self.error(f"{self.said(key)} is {shown(value)}; it must be {what}")
        return value

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_INTEGER) -> int:
        """A whole number in [minimum, maximum]. Without a default the key must be there; null is refused."""
        what = f"a whole number from {minimum} to {maximum}"
        return int(self._checked(key, default, lambda v: type(v) is int and minimum <= v <= maximum, what))

    def optional_integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int | None:
        """Like `integer`, but null means None and an absent key means the default."""
        self.used.add(key)
        if not self.has(key):
            return default
        return None if self.data[key] is None else self.integer(key, minimum=minimum)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero. Without a default the key must be there; null is refused."""
        return float(self._checked(key, default, _is_positive, "a finite number above zero"))

    def decimal(self, key: str, default: float) -> float:
        """A finite number, not below zero, by its shortest decimal."""
        what = "a finite number, not below zero"
        return shortest_decimal(float(self._checked(key, default, lambda v: v == 0 or _is_positive(v), what)))

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return bool(self._checked(key, default, lambda v: isinstance(v, bool), "true or false"))

    def text(self, key: str, default: str | None = None) -> str:
        """A string. Without a default the key must be there; null is refused."""
        return str(self._checked(key, default, lambda v: isinstance(v, str), "a string"))

    def items(self, key: str, kind: type[Item], default: list[Item] | None = None) -> list[Item]:
        """A list whose items are all of the type `kind`. Without a default the key must be there."""
        what = f"a list of {_ITEMS[kind]}"

        def is_good(value: Any) -> bool:
            return isinstance(value, list) and all(type(item) is kind for item in value)

        return list(self._checked(key, default, is_good, what))

    def token_ids(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """A token id, a list of them, or null for none."""
        self.used.add(key)
        if not self.has(key):
            return default
        value = self.get(key)
        ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i <= MAX_INTEGER for i in ids):
            raise self.error(f"{key} is {shown(value)}; it must be a token id, a list of token ids, or null")
        return tuple(ids)

    def only(self, key: str, allowed: tuple[Any, ...], why: str) -> None:
        """Accept the key only when absent or one of the allowed values; `why` says what another would mean."""
        value = self.get(key)
        # `==` alone would take 0 for false and 1 for true.
        if self.has(key) and not any(type(value) is type(a) and value == a for a in allowed):
            expected = " or ".join(shown(a) for a in allowed)
            raise self.error(f"{self.said(key)} is {shown(value)}, and only {expected} can be exported: {why}")

    def unused(self) -> list[str]:
        """Keys that are there and were never read."""
        return sorted(set(self.data) - self.used)

    def unknown(self, kind: str, keys: Iterable[str], hint: Callable[[str], str] = lambda key: "") -> UsageError:
        """The error to raise for keys that nobody understands, each with what `hint` has to say of it."""
        named = ", ".join(f"{key} = {shown(self.data[key])}{hint(key)}" for key in keys)
        return self.error(
            f"unknown{kind}: {named}. A key that is not understood may change what the model computes, so none is "
            "skipped; if it has no effect on inference, remove it from a copy of the file"
        )


@dataclass(frozen=True)
class HeadKeys:
    """What a format calls the numbers of heads, their width and that of the stream."""

    heads: str
    key_value_heads: str
    head_dim: str
    hidden_size: str


def check_heads(fields: RawFields, keys: HeadKeys, heads: int, key_value_heads: int, head_dim: int) -> None:
    """Raise UsageError when query heads cannot share key/value heads evenly, or RoPE cannot pair dimensions."""
    if heads % key_value_heads:
        remedy = "" if fields.has(keys.key_value_heads) else f". State {keys.key_value_heads}, as the weights have it"
        raise fields.error(
            f"{fields.told(keys.heads, heads)} and {fields.told(keys.key_value_heads, key_value_heads)}: the first "
            f"must be a multiple of the second, for each key/value head serves as many query heads{remedy}"
        )
    if head_dim % 2:
        origin = "" if fields.has(keys.head_dim) else " (hidden size / heads, as the file does not state it)"
        raise fields.error(f"{keys.head_dim} is {head_dim}{origin}; RoPE turns pairs of dimensions, so it must be even")


def derived_head_dim(fields: RawFields, keys: HeadKeys, hidden_size: int, heads: int) -> int:
    """D / N, for a source that does not state the head's width. Raises UsageError when it is not whole."""
    if hidden_size % heads:
        wide, number = fields.said(keys.hidden_size), fields.said(keys.heads)
        raise fields.error(
            f"{wide} is {hidden_size} and {number} is {heads}; where {keys.head_dim} is not stated a head is "
            f"{wide} / {number} wide, which must be a whole number"
        )
    return hidden_size // heads


def check_derived_width(fields: RawFields) -> None:
    """Refuse a `head_dim` of a family without this key, of which transformers would make nothing or only RoPE's turn.

    Raises UsageError.
    """
    hidden_size, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    why = f"this family's heads are {fields.said('hidden_size')} / {fields.said('num_attention_heads')} wide"
    fields.only("head_dim", (None, hidden_size // heads), why)


def check_no_groups(fields: RawFields) -> None:
    """Refuse key/value heads of another number in a family without this key, as transformers does not read it.

    Raises UsageError.
    """
    heads = fields.integer("num_attention_heads")
    fields.only("num_key_value_heads", (None, heads), "this family's heads each have keys and values of their own")
