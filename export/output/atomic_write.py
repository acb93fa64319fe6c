"""Files that several processes may be changing: written beside their place under a name of their own, then renamed.

A process that is killed cannot clean up, so the name says whose it is, and the next writer removes what is left over.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from blockexport.export.output.disk import disk_errors, folders_made
from blockexport.export.output.hidden_names import partial_origin, partial_path
from blockexport.export.output.lock import NO_LOCKS, FileLock

LOCK = ".manifest.lock"
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
            for name, partial in partials.items():
                os.replace(partial, folder / name)


def abandoned(folder: Path) -> list[Path]:
    """The partial files and folders in `folder` of processes of this machine that are gone.

    Those of other machines are left out: whether their process lives cannot be seen from here.
    """
    found = [(path, partial_origin(path.name)) for path in folder.glob(".*.partial")]
    return [path for path, by in found if by is not None and by[0] == platform.node() and not is_running(by[1])]


def remove_abandoned(folder: Path) -> None:
    """Remove what is `abandoned` in `folder`."""
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
    """Hold a folder against others who rename files into it; waits for them, which takes them milliseconds."""
    lock = None
    try:
        lock = FileLock.take(folder / LOCK)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
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


def rename_together(moves: Sequence[tuple[Path, Path]]) -> None:
    """Rename each first path to its second, replacing what lies there; where one fails, all is as it was before.

    The last one is replaced in a single step. A process killed in the middle may leave an earlier one missing.
    """
    done: list[tuple[Path, Path, Path | None]] = []
    with signals_deferred():
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
        for _, _, older in done:
            if older is not None:
                older.unlink()
