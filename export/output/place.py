"""Where output goes, decided before any work: nothing of the user's may be lost, and no work may be in vain.

Every command that writes a folder asks here first. An output holds none of the command's inputs, lies in none of them
and in no sealed bundle, and replaces an older bundle only where that bundle's own manifest lists all there is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from blockexport.export.output.disk import disk_errors
from blockexport.export.output.hidden_names import LONGEST_SUFFIX
from blockexport.export.output.ownership import is_bundle, strangers
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import require_utf8
from blockexport.models.wording import listed


def inputs_of(*named: str | Path | None) -> list[Path]:
    """The paths among what a command was given to read; presets and Hugging Face ids are not."""
    paths = [Path(name).expanduser() for name in named if name is not None and str(name)]
    for path in paths:
        require_utf8(path)
    return [path for path in paths if path.exists()]


def output_place(output: Path, inputs: Iterable[Path], what: str = "the output") -> Path:
    """The real path of a folder that is to be made or written into: absolute, symbolic links resolved.

    Args:
        output: what the user named.
        inputs: the files and folders that the command reads.
        what: the output's name in messages.

    Raises:
        UsageError: there can be no folder, or it and an input overlap, or it lies in a sealed bundle.
    """
    with disk_errors(output):
        path = _absolute(output)
        require_utf8(path)
        _require_possible(output, path, what)
        place = Path(os.path.realpath(path))
        for given in inputs:
            _require_apart(output, place, given, what)
        for parent in place.parents:
            if is_bundle(parent):
                raise UsageError(f"{what} {output} lies in the bundle {parent}, which is sealed: choose another place")
    return place


def _absolute(output: Path) -> Path:
    try:
        return output.absolute()
    except FileNotFoundError as error:
        raise UsageError(f"{output} cannot be found: the current folder is gone. Change to another") from error


def _require_possible(output: Path, path: Path, what: str) -> None:
    nearest = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if nearest.is_dir():
        return
    if nearest.is_symlink() and not nearest.exists():
        raise UsageError(
            f"{what} {output} cannot be made: {nearest} is a symbolic link to {nearest.readlink()}, which does not "
            "exist. Choose another place, or remove the link"
        )
    if nearest == path:
        raise UsageError(f"{what} {output} is a file, where a folder has to be: choose another place")
    raise UsageError(f"{what} {output} cannot be made: {nearest} is not a folder. Choose another place")


def _require_apart(output: Path, place: Path, given: Path, what: str) -> None:
    real = Path(os.path.realpath(given))
    if _is_same(place, real):
        raise UsageError(f"{what} {output} is the input {given} itself: choose another place")
    if real.is_dir() and is_inside(place, real):
        raise UsageError(f"{what} {output} lies in the input {given}: choose a place outside of it")
    for path in _with_links(real):
        if is_inside(path, place):
            through = "" if path == real else f", through a symbolic link to {path}"
            raise UsageError(f"{what} {output} holds the input {given}{through}: choose another place")


def _with_links(real: Path) -> Iterator[Path]:
    """An input, and what the symbolic links in its folder point to: a snapshot of the Hub is a folder of links."""
    yield real
    if real.is_dir():
        for entry in os.scandir(real):
            if entry.is_symlink():
                yield Path(os.path.realpath(entry.path))


def is_inside(inner: Path, outer: Path) -> bool:
    """Whether a real path is another one or lies in it, by what the system says is the same, however it is spelt."""
    return any(_is_same(path, outer) for path in (inner, *inner.parents))


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one == other or one.samefile(other)
    except (FileNotFoundError, NotADirectoryError):
        return False


def bundle_place(output: Path, inputs: Iterable[Path], *, force: bool) -> Path:
    """`output_place` for a bundle that is to be made; with `force` an older bundle is replaced.

    Raises:
        UsageError: as `output_place`, and where something is in the way; names what `force` does not replace.
    """
    place = output_place(output, inputs)
    with disk_errors(output):
        if (reason := why_taken(place, force=force)) is not None:
            raise UsageError(f"the output {output} {reason}")
        nearest = next(path for path in place.parents if path.exists())
        longest = os.pathconf(nearest, "PC_NAME_MAX") - LONGEST_SUFFIX
    if len(os.fsencode(place.name)) > longest:
        raise UsageError(f"the output's name has {len(os.fsencode(place.name))} bytes: choose one of at most {longest}")
    return place


def why_taken(place: Path, *, force: bool) -> str | None:
    """Why no bundle can be put at a real path, in words that follow its name; None where one can."""
    if os.path.ismount(place):
        return "is a mount point, and a bundle comes to its place by renaming: name a folder inside of it"
    if place.is_symlink():
        return "is a symbolic link"
    if not place.is_dir():
        return "is a file: name a folder to make" if os.path.lexists(place) else None
    if _holds_current_folder(place):
        return "is the current folder or holds it, and would be replaced: name a folder to make"
    if not any(place.iterdir()):
        return None
    if not is_bundle(place):
        return "holds files that are not a bundle: name another folder, or empty it"
    if not force:
        return "already holds a bundle: use --force to replace it"
    others = strangers(place)
    if others:
        return (
            f"holds {listed(others)}, which blockexport did not write, and --force replaces the bundle's own files "
            "only: move that away, or name another folder"
        )
    return None


def _holds_current_folder(place: Path) -> bool:
    try:
        return is_inside(Path(os.path.realpath(os.curdir)), place)
    except FileNotFoundError:  # it is gone
        return False
