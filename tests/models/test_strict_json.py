"""Records out of JSON: nothing is converted, and what does not fit is named with what it has to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pytest

from blockexport.models.strict_json import read_record


class Kind(StrEnum):
    ONE = "one"
    TWO = "two"


@dataclass(frozen=True)
class Inner:
    size: int
    label: str = "none"


@dataclass(frozen=True)
class Outer:
    count: int
    ratio: float
    on: bool
    kind: Kind
    mode: Literal["slow", "fast"]
    inner: Inner | None
    shape: tuple[str | int, ...]
    named: dict[str, Inner] = field(default_factory=dict)
    seed: int | None = None
    pair: tuple[int, int] = (0, 1)
    anything: dict[str, Any] = field(default_factory=dict)


GOOD: dict[str, Any] = {
    "count": 3,
    "ratio": 2,
    "on": True,
    "kind": "two",
    "mode": "fast",
    "inner": {"size": 5},
    "shape": ["a", 7],
    "named": {"x": {"size": 1, "label": "y"}},
    "anything": {"deep": [1, {"2": None}]},
}


def test_every_kind_of_field() -> None:
    outer = read_record(Outer, GOOD, "top")
    assert outer == Outer(
        3,
        2.0,
        True,
        Kind.TWO,
        "fast",
        Inner(5),
        ("a", 7),
        {"x": Inner(1, "y")},
        None,
        (0, 1),
        {"deep": [1, {"2": None}]},
    )
    assert repr(outer.ratio) == "2.0" and repr(outer.kind) == "<Kind.TWO: 'two'>"
    assert read_record(Outer, {**GOOD, "inner": None, "seed": 4}, "top").inner is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": "3"}, 'top.count is "3", and must be a whole number'),
        ({"count": 3.0}, "top.count is 3.0, and must be a whole number"),
        ({"count": True}, "top.count is true, and must be a whole number"),
        ({"count": None}, "top.count is null, and must be a whole number"),
        ({"ratio": float("nan")}, "top.ratio is NaN, and must be a finite number"),
        ({"ratio": "2"}, 'top.ratio is "2", and must be a finite number'),
        ({"on": 1}, "top.on is 1, and must be true or false"),
        ({"kind": "three"}, 'top.kind is "three", and must be one of one, two'),
        ({"mode": 2}, "top.mode is 2, and must be one of slow, fast"),
        ({"inner": {"size": "5"}}, 'top.inner.size is "5", and must be a whole number'),
        ({"inner": {}}, "top.inner lacks the key 'size'"),
        ({"inner": []}, "top.inner is [], and must be an object with keys"),
        ({"inner": {"size": 5, "sise": 5}}, "top.inner holds the unknown key 'sise'"),
        ({"shape": ["a", 1.5]}, "top.shape[1] is 1.5, and must be text or a whole number"),
        ({"shape": "ab"}, 'top.shape is "ab", and must be a list'),
        ({"named": {"x": 1}}, "top.named['x'] is 1, and must be an object with keys"),
        ({"pair": [1, 2, 3]}, "top.pair is [1, 2, 3], and must be a list of 2"),
        ({"pair": [1, "2"]}, 'top.pair[1] is "2", and must be a whole number'),
        ({"seed": "x"}, 'top.seed is "x", and must be a whole number or null'),
        ({"count": "9" * 90}, f'top.count is "{"9" * 76}..., and must be a whole number'),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the whole message is compared)
        read_record(Outer, {**GOOD, **change}, "top")
    assert str(caught.value) == message
