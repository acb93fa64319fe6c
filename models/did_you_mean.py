"""A hint at the name that was meant by one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """` (did you mean ...?)` with the known name that is closest; empty where none is close."""
    close = difflib.get_close_matches(given.lower(), list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
