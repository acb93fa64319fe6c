"""Where this process writes, as Python tells of it: every file opened for writing, renamed, linked, made or removed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Of each event, which of its arguments are paths, and which the open folders that those are relative to.
_CHANGES = {
    "os.chmod": ((0,), (2,)),
    "os.chown": ((0,), (3,)),
    "os.link": ((1,), (3,)),
    "os.mkdir": ((0,), (2,)),
    "os.remove": ((0,), (1,)),
    "os.rename": ((0, 1), (2, 3)),
    "os.rmdir": ((0,), (1,)),
    "os.symlink": ((1,), (2,)),
    "os.truncate": ((0,), ()),
    "os.utime": ((0,), (3,)),
}
_noting: list[set[Path]] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _noting:
        return
    if event in ("open", "os.mkdir") and os.path.isdir(arguments[0]):  # type: ignore[arg-type]  # noqa: PTH112
        return  # nothing is made, and a folder is opened only for what is made in it
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & _WRITES:
            _note(path, -1)
    elif event in _CHANGES:
        paths, folders = _CHANGES[event]
        for number, at in enumerate(paths):
            folder = arguments[folders[number]] if number < len(folders) else -1
            _note(arguments[at], folder)


def _note(path: object, folder: object) -> None:
    if isinstance(path, int):  # a file that is open already
        return
    place = Path(os.fsdecode(path))  # type: ignore[arg-type]
    if isinstance(folder, int) and folder >= 0:
        place = Path(f"/proc/self/fd/{folder}").readlink() / place
    _noting[-1].add(place.parent.resolve() / place.name)


@contextmanager
def written_places(*allowed: Path) -> Iterator[set[Path]]:
    """The set that fills while the body runs; when it is left, without what is or lies below one of `allowed`, was a
    hidden file beside it and is gone again, is a device, or Python's own compiled code."""
    _install()
    found: set[Path] = set()
    _noting.append(found)
    try:
        yield found
    finally:
        _noting.pop()
        roots = [path.resolve() for path in allowed]
        found -= {place for place in found if _is_allowed(place, roots)}


@cache
def _install() -> None:
    sys.addaudithook(_hook)  # for the rest of the process: it cannot be taken away


def _is_allowed(place: Path, roots: list[Path]) -> bool:
    if any(place.is_relative_to(root) for root in roots) or place.parts[1] == "dev" or "__pycache__" in place.parts:
        return True
    for folder in {root.parent for root in roots}:
        if folder in place.parents:
            beside = folder / place.relative_to(folder).parts[0]
            if beside.name.startswith(".") and not os.path.lexists(beside):
                return True
    return False
