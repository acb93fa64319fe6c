"""A file that a command writes and may write again, known by the mark at its end: anybody else's is left alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from blockexport.models.errors import UsageError


def marked_place(path: Path, what: str, mark: str, inputs: Iterable[Path] = ()) -> Path:
    """The real path of a file that is to be written; `what` it is, for messages.

    Raises:
        UsageError: it cannot be written, is one of the inputs, or something is there that `write_marked` has not
            written.
    """
    from blockexport.export.output.place import output_place

    place = output_place(path.parent / path.name, inputs, f"the {what}") if not path.is_file() else path.resolve()
    if path.is_dir():
        raise UsageError(f"the {what} {path} is a folder, where a file has to go: choose another name")
    if path.is_file() and not _is_marked(path, mark.encode()):
        raise UsageError(
            f"the {what} {path} would replace a file that is not a {what} of blockexport's: choose another name"
        )
    if not place.parent.is_dir():
        raise UsageError(f"the {what} {path} cannot be written: there is no folder {place.parent}. Make it first")
    return place


def write_marked(place: Path, content: str, mark: str) -> None:
    """Write the file, or replace an older one.

    Raises:
        UsageError: the disk is full, or cannot be written. An older file is then as it was.
    """
    from blockexport.export.output.atomic_write import replace_file

    replace_file(place, (content + mark).encode())


def _is_marked(path: Path, mark: bytes) -> bool:
    """Whether `write_marked` wrote the file, however large: the mark is its end."""
    from blockexport.models.regular_file import open_regular

    with open_regular(path) as file:
        file.seek(max(0, path.stat().st_size - len(mark)))
        return file.read(len(mark) + 1) == mark
