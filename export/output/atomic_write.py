"""Files that several processes may be changing: written beside their place under a name of their own, then renamed.

A process that is killed cannot clean up, so the name says whose it is, and the next writer removes what is left over.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from blockexport.export.output.disk import disk_errors, folders_made
from blockexport.export.output.hidden_names import partial_origin, partial_path
from blockexport.export.output.lock import NO_LOCKS, FileLock
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import read_bytes
from blockexport.models.strict_json import read_record

LOCK = ".manifest.lock"
PLAN = ".renames.json"  # of one who is renaming, in the folder
_LONGEST_PLAN = 1 << 17  # bytes: a bundle's own has a few thousand
_NOT_OURS = {"ENOTDIR", "EISDIR", "ENOTEMPTY", "EEXIST", "ENOENT", "EINVAL", "ENAMETOOLONG", "ELOOP"}
"""What a plan of ours meets in no folder: one that moves folders, say."""
_HERE = [name for name in ("SIGHUP", "SIGALRM") if hasattr(signal, name)]  # the last by a timer: see cli/interrupts.py
ENDING = (signal.SIGINT, signal.SIGTERM, *(getattr(signal, name) for name in _HERE))


@contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """Where to write what is to become `path`; it is removed unless it has been renamed when the block is left."""
    partial = partial_path(path)
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Make or replace `path`, which has all of the content at any time, or is as it was.

    Raises:
        UsageError: the disk is full or cannot be written.
    """
    with disk_errors(path.parent), partial_file(path) as partial:
        partial.write_bytes(content)
        os.replace(partial, path)


def write_together(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Make or replace several files of a folder, made if need be: all of them, or none where the disk is full.

    Raises:
        OSError: the folder cannot be written.
    """
    with folders_made(folder), ExitStack() as beside:
        remove_abandoned(folder)
        partials = {name: beside.enter_context(partial_file(folder / name)) for name in contents}
        for name, content in contents.items():
            partials[name].write_bytes(content)
        with locked(folder):  # of two writers at once, all files are the later one's
            rename_together(folder, [(partial, folder / name) for name, partial in partials.items()])


def abandoned(folder: Path) -> list[Path]:
    """The partial files and folders in `folder` of processes of this machine that are gone.

    Those of other machines are left out: whether their process lives cannot be seen from here.
    """
    found = [(path, partial_origin(path.name)) for path in folder.glob(".*.partial")]
    return [path for path, by in found if by is not None and by[0] == platform.node() and not is_running(by[1])]


def remove_abandoned(folder: Path) -> None:
    """Remove what is `abandoned` in `folder`, and do the rest of what was to be renamed."""
    finish_moves(folder)
    for path in abandoned(folder):
        remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it; none of them is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def is_running(process: int) -> bool:
    """Whether there is a process of this number on this machine."""
    try:
        os.kill(process, 0)  # signal 0 asks only
    except (ProcessLookupError, OverflowError):  # no process has a number that large
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder against others who rename files into it; waits for them, which takes them milliseconds. What one
    who was killed has begun is done when the body begins."""
    lock = None
    try:
        lock = FileLock.take(folder / LOCK)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        if lock is not None and (folder / PLAN).is_file():
            _finish(folder)
        yield
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Signals that end a process wait until the body is done, and then have their usual effect.

    Other threads than the main one cannot set handlers, and are not interrupted by signals either.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, note) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


def rename_together(folder: Path, moves: Sequence[tuple[Path, Path]], removed: Sequence[Path] = ()) -> None:
    """Rename each first path to its second in `folder`, replacing what lies there, and remove what is `removed`; where
    one step fails, all is as it was before. The last one is replaced in a single step.

    The caller holds `locked(folder)`. What is to be done is written down first: of a process that is killed in the
    middle, the next one does the rest.
    """
    plan = {
        "moves": [[os.path.relpath(path, folder) for path in move] for move in moves],
        "removed": [os.path.relpath(path, folder) for path in removed],
    }
    with signals_deferred():
        replace_file(folder / PLAN, json.dumps(plan).encode())
        try:
            with folders_made(*(place.parent for _, place in moves)):
                replaced = _rename_each(moves)
        except BaseException:
            (folder / PLAN).unlink()
            raise
        for older in replaced:
            older.unlink()
        _remove_each(removed)
        (folder / PLAN).unlink()


def _rename_each(moves: Sequence[tuple[Path, Path]]) -> list[Path]:
    """Where what was replaced is now; of the last one nothing is left."""
    done: list[tuple[Path, Path, Path | None]] = []
    try:
        for new, place in moves[:-1]:
            older = partial_path(new) if place.exists() else None
            if older is not None:
                os.rename(place, older)
            done.append((new, place, older))
            os.rename(new, place)
        os.replace(*moves[-1])
    except BaseException:
        for new, place, older in reversed(done):
            if place.exists():
                os.rename(place, new)
            if older is not None:
                os.rename(older, place)
        raise
    return [older for _, _, older in done if older is not None]


def finish_moves(folder: Path) -> None:
    """Wait for one who is renaming in `folder`, if any; of one who was killed over it, do the rest. A folder that may
    not be written stays as it is."""
    if (folder / PLAN).is_file():
        with suppress(OSError), locked(folder):
            pass


@dataclass(frozen=True)
class _Plan:
    """Paths below the folder: each first one becomes the second."""

    moves: tuple[tuple[str, str], ...]
    removed: tuple[str, ...]


def _finish(folder: Path) -> None:
    try:
        plan = read_record(_Plan, json.loads(read_bytes(folder / PLAN, _LONGEST_PLAN)), "")
        real = os.path.realpath(folder)
        moves = [(_inside(folder, real, new), _inside(folder, real, place)) for new, place in plan.moves]
        removed = [_inside(folder, real, name) for name in plan.removed]
        for new, place in moves:
            if new.exists():
                place.parent.mkdir(exist_ok=True)
                os.replace(new, place)
        _remove_each(removed)
        (folder / PLAN).unlink()
    except (UsageError, ValueError, RecursionError):  # none of ours
        return
    except OSError as error:
        if errno.errorcode.get(error.errno or 0) not in _NOT_OURS:
            raise


def _remove_each(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # it holds something else; an empty folder would not be the bundle's own
            path.parent.rmdir()


def _inside(folder: Path, real: str, name: str) -> Path:
    """A path of a plan, which may be a stranger's: nothing outside of the folder, which is `real`, is ever touched."""
    os.fsencode(name)  # ValueError where it holds half of a character
    path = folder / name
    around = Path(os.path.realpath(path.parent))
    if "\0" in name or not around.is_relative_to(real) or path.name in ("", ".."):
        raise ValueError(f"{name} is outside")
    return path
