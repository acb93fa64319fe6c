"""Damage done to an input: to its bytes, or to the values of its JSON, which bytes alone seldom reach."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63)),
    *(0.0, -0.0, 0.5, 1e-320, 1e308, 1e400, -1e400, float("nan")),
    *("", " ", "a", "\0", "\ud800", "é▁", "..", "../a", "/etc/passwd", "a/b", "(a+)+$", "re:(a|a)*", "[", "x" * 5000),
    *([], {}, [[]], [0], [-1, 2**40], ["a"], [None], {"a": 1}, {"": {}}, {"type": "a"}),
)
LENGTHS = (0, 1, 2, 7, 8, 255, 2**16, 2**31, 2**32 - 1, 2**32, 2**60, 2**63, 2**64 - 1)


def mutated(data: bytes, random: Random, *, most: int = 1 << 16) -> bytes:
    """`data` with one to four changes, of at most `most` bytes."""
    for _ in range(random.choice((1, 1, 2, 4))):
        as_json = data[:1] in (b"{", b"[") and random.random() < 0.8
        data = _json_changed(data, random) if as_json else _bytes_changed(data, random)
    return data[:most]


def _json_changed(data: bytes, random: Random) -> bytes:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes_changed(data, random)
    places = list(_places(document))
    if not places:
        return json.dumps(random.choice(VALUES)).encode()
    holder, key = random.choice(places)
    kind = random.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        other, name = random.choice(places)
        holder[key] = json.loads(json.dumps(other[name])) if name in other or isinstance(other, list) else None
    elif kind == 2 and isinstance(holder, dict):
        holder[random.choice(("", "a", "\0", "__metadata__", str(key) + "s"))] = holder[key]
    elif kind == 2:
        holder.append(holder[key])
    elif kind == 3 and isinstance(holder[key], str):
        holder[key] = holder[key] + str(random.choice(("x", "\ud800", "(a+)+", "..", "\n", "0")))
    elif kind == 4 and type(holder[key]) is int:
        holder[key] += random.choice((-1, 1, 2**32, -(2**32)))
    elif kind == 5 and random.random() < 0.05:
        nested = "[" * random.choice((30, 900, 50_000))
        return json.dumps(document).encode().replace(b":", f": {nested}".encode(), 1)
    else:
        holder[key] = random.choice(VALUES)
    return json.dumps(document, ensure_ascii=bool(random.randrange(2))).encode("utf-8", "surrogatepass")


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every list or object with each of its indices or keys."""
    for key in document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ():
        yield document, key
        yield from _places(document[key])


def _bytes_changed(data: bytes, random: Random) -> bytes:
    at, kind = random.randrange(len(data) + 1), random.randrange(7)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
    if kind == 2:
        return data[:at] + data[at + random.choice((1, 2, 4, 8)) :]
    if kind == 3:
        return data[:at] + data[random.randrange(len(data) + 1) :][: random.choice((1, 4, 8, 40))] + data[at:]
    if kind == 4:  # what a varint of protobuf or a length of GGUF may hold
        width = random.choice((1, 2, 4, 8))
        return data[:at] + (random.choice(LENGTHS) % (1 << 8 * width)).to_bytes(width, "little") + data[at + width :]
    if kind == 5:
        return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :] if at < len(data) else data
    return data[:at] + random.choice((b"\xff", b"\0" * 9, b'"', b"[", b"\xed\xa0\x80", b"1e999", b"-0")) + data[at:]
