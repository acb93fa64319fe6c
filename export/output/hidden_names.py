"""The names of what lies beside an output while it is made: hidden, ours by their form, and never shown to the user."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

PARTIAL, OLD = "partial", "old"
LONGEST_SUFFIX = len("..blockexport.0123456789ab.partial")  # what a hidden name has more than the output's
HIDDEN = re.compile(rf"\.(?P<name>.+)\.blockexport\.(lock|[0-9a-f]{{12}}\.(?P<kind>{PARTIAL}|{OLD}))", re.DOTALL)


def hidden_place(place: Path, kind: str) -> Path:
    """A new name beside `place`: PARTIAL for what is being made, OLD for what is being replaced."""
    return place.with_name(f".{place.name}.blockexport.{secrets.token_hex(6)}.{kind}")


def lock_place(place: Path) -> Path:
    """Where the lock of `place` is."""
    return place.with_name(f".{place.name}.blockexport.lock")


def shown(path: Path) -> Path:
    """A path as the user knows it: in the output that is being made, and not in the hidden folder beside it."""
    parts = [found["name"] if (found := HIDDEN.fullmatch(part)) else part for part in path.parts]
    return Path(*parts)
