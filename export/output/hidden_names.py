"""The names of what lies beside or inside of an output while it is made: hidden, ours by their form, never shown."""

from __future__ import annotations

import os
import platform
import re
import secrets
from pathlib import Path

PARTIAL, OLD = "partial", "old"
LONGEST_SUFFIX = len("..blockexport.0123456789ab.partial")  # what a hidden name has more than the output's
HIDDEN = re.compile(rf"\.(?P<name>.+)\.blockexport\.(lock|[0-9a-f]{{12}}\.(?P<kind>{PARTIAL}|{OLD}))", re.DOTALL)
_PARTIAL = re.compile(r"\..+\.(?P<host>.+)-(?P<process>\d+)-[0-9a-f]{8}\.partial", re.DOTALL)


def hidden_place(place: Path, kind: str) -> Path:
    """A new name beside `place`: PARTIAL for what is being made, OLD for what is being replaced."""
    return place.with_name(f".{place.name}.blockexport.{secrets.token_hex(6)}.{kind}")


def lock_place(place: Path) -> Path:
    """Where the lock of `place` is."""
    return place.with_name(f".{place.name}.blockexport.lock")


def partial_path(path: Path) -> Path:
    """Where to write what is to become `path`: beside it, hidden, and no other process's or thread's."""
    return path.with_name(f".{path.name}.{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}.partial")


def partial_origin(name: str) -> tuple[str, int] | None:
    """The machine and the process that made a name by `partial_path`; None for any other name."""
    found = _PARTIAL.fullmatch(name)
    return None if found is None else (found["host"], int(found["process"]))


def shown(path: Path) -> Path:
    """A path as the user knows it: in the output that is being made, and not in a hidden folder of it."""
    known = (part for part in path.parts if partial_origin(part) is None)
    parts = [found["name"] if (found := HIDDEN.fullmatch(part)) else part for part in known]
    return Path(*parts)
