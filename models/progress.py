"""How long work says how far it is, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as `progress(label, done, total)`; `done == total` ends that label."""


def silent(label: str, done: int, total: int) -> None:
    """The listener that hears nothing."""
