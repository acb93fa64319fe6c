"""Findings that every layer of a model has are told once, with the layers they are in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_LAYER = re.compile(r"(?:^|[._/ ])(?:layers?|blocks?|h|past_key_values|present)[._/]?(\d{1,9})(?=[._/]|$)")

Problem = tuple[str, tuple[str, ...]]
"""A sentence with a `{}` for each name in it, and those names."""


def told_once(problems: Iterable[Problem]) -> list[str]:
    """The problems in order of their first, those that differ by their names alone as one."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    for sentence, names in problems:
        groups.setdefault(sentence, []).append(names)
    return [tell(sentence, members) for sentence, members in groups.items()]


def tell(sentence: str, members: Sequence[tuple[str, ...]]) -> str:
    """One problem of one or more places: the first by name, how many more there are, and in which layers."""
    first = sentence.format(*members[0])
    if len(members) == 1:
        return first
    layers = layers_of(name for names in members for name in names)
    return f"{layers}{first} (and the same at {len(members) - 1} more)"


def layers_of(names: Iterable[str]) -> str:
    """`layers 0..29: ` from names that hold the numbers of layers; empty where none does."""
    numbers = sorted({int(found[1]) for name in names if (found := _LAYER.search(name))})
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    said = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)
    return f"layer{'s' if len(numbers) > 1 else ''} {said}: " if runs else ""
