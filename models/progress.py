"""How long work says how far it is, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Progress = Callable[[str, int, int], None]
"""Called as `progress(label, done, total)`; `done == total` ends that label."""


def silent(label: str, done: int, total: int) -> None:
    """The listener that hears nothing."""


def counted(items: Collection[Item], label: str, progress: Progress) -> Iterator[Item]:
    """The items one by one; `progress` is told before each how many are done, and after the last that all are."""
    for done, item in enumerate(items):
        progress(label, done, len(items))
        yield item
    progress(label, len(items), len(items))
