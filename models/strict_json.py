"""Records read back from JSON, strictly: every key is there and known, every value is of its field's type.

A whole number does for a fraction, as in JSON itself; nothing else is converted. Text that holds a number is text.

Why not a library: see "Records are read by our own reader" in docs/concepts/design.md.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import EnumType
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")

_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a finite number",
    str: "text",
    bool: "true or false",
    types.NoneType: "null",
}


def read_record(kind: type[Record], value: Any, where: str) -> Record:
    """The dataclass `kind` out of parsed JSON.

    Its fields may be numbers, text, booleans, None, enumerations of text, literals, unions, tuples (JSON lists), dicts
    with text for keys, and such dataclasses again.

    Raises:
        ValueError: a key is missing or unknown, or a value is of another type; it is named by its path from `where`,
            with the value and what it has to be.
    """
    return cast(Record, _read(kind, value, where))


def _read(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if is_dataclass(hint):
        return _record(hint, value, where)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(hint), hint, value, where)
    if origin is tuple:
        if isinstance(value, list | tuple):
            kinds = get_args(hint)
            if kinds[-1] is not Ellipsis and len(kinds) != len(value):
                raise ValueError(f"{where} is {shown(value)}, and must be a list of {len(kinds)}")
            return tuple(_read(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    elif origin is dict:
        if isinstance(value, dict):
            return {key: _read(get_args(hint)[1], item, f"{where}[{key!r}]") for key, item in value.items()}
    elif origin is Literal or isinstance(hint, EnumType):
        allowed = list(hint) if isinstance(hint, EnumType) else get_args(hint)
        if isinstance(value, str) and value in allowed:
            return allowed[allowed.index(value)]
    elif _is_plain(hint, value):
        return float(value) if hint is float else value
    raise ValueError(f"{where} is {shown(value)}, and must be {_words(hint)}")


def _record(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where or 'it'} is {shown(value)}, and must be {_words(kind)}")
    known, hints = fields(kind), _hints(kind)
    unknown = sorted(value.keys() - {field.name for field in known})
    if unknown:
        raise ValueError(f"{where or 'it'} holds the unknown key {unknown[0]!r}")
    for field in known:
        if field.name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where or 'it'} lacks the key {field.name!r}")
    path = f"{where}." if where else ""
    return kind(**{f.name: _read(hints[f.name], value[f.name], f"{path}{f.name}") for f in known if f.name in value})


@cache
def _hints(kind: Any) -> Mapping[str, Any]:  # most of the time of reading a record, otherwise
    return get_type_hints(kind)


def _one_of(members: tuple[Any, ...], hint: Any, value: Any, where: str) -> Any:
    if value is None and types.NoneType in members:
        return None
    others = [member for member in members if member is not types.NoneType]
    if len(others) == 1 and (is_dataclass(others[0]) or get_origin(others[0]) is not None):
        return _read(others[0], value, where)  # what is wrong inside of it says more
    for member in others:
        if _is_plain(member, value):
            return _read(member, value, where)
    raise ValueError(f"{where} is {shown(value)}, and must be {_words(hint)}")


def _is_plain(hint: Any, value: Any) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _words(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(member) for member in get_args(hint))
    if origin is Literal:
        return f"one of {', '.join(get_args(hint))}"
    if isinstance(hint, EnumType):
        return f"one of {', '.join(hint)}"
    if origin is tuple:
        return "a list"
    return _WORDS.get(hint, "an object with keys")


def shown(value: Any) -> str:
    """A value as JSON, shortened to fit a message."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."
