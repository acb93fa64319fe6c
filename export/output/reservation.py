"""One process at a time makes an output: the second is told who the first is, and since when.

The lock is a file beside the output and ends with its process, however that ends. Whoever holds it alone knows that
other hidden files of the same output were left by processes that were killed.
"""

from __future__ import annotations

import errno
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from blockexport.export.output.atomic_write import is_running
from blockexport.export.output.disk import disk_errors
from blockexport.export.output.hidden_names import HIDDEN, OLD, PARTIAL, lock_place
from blockexport.export.output.lock import NO_LOCKS, FileLock
from blockexport.export.output.ownership import remove_own
from blockexport.models.errors import UsageError


@contextmanager
def reserved(place: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold an output against other processes, and remove what killed ones have left beside it.

    Args:
        place: the output's real path; its parent exists.
        shared: to add to a bundle, which several may do at once, but none while the bundle is made or replaced.

    Raises:
        UsageError: another process holds it; says which, and since when.
    """
    lock = _take(place, shared=shared)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _take(place: Path, *, shared: bool) -> FileLock | None:
    """The lock; None where the file system has none, or where nobody could replace what a sharer adds to."""
    path = lock_place(place)
    with disk_errors(place):
        try:
            return _take_alone(path, place, shared=shared)
        except BlockingIOError:
            with suppress(BlockingIOError):
                if shared:
                    return FileLock.take(path, shared=True, wait=False, line=_ourselves())
            raise UsageError(f"{place} {_holder(path)}: wait for it, or choose another output") from None
        except OSError as error:
            if error.errno in NO_LOCKS or (shared and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)):
                return None
            raise


def _take_alone(path: Path, place: Path, *, shared: bool) -> FileLock:
    """The lock, alone for as long as leftovers are removed, and then `shared` if asked."""
    lock = FileLock.take(path, wait=False, line=_ourselves())
    try:
        _clear(place)
        if shared:
            lock.share()
    except BaseException:
        lock.release()
        raise
    return lock


def _ourselves() -> str:
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    return "\t".join((str(os.getpid()), platform.node(), now, shlex.join(["blockexport", *sys.argv[1:]])))


def _holder(path: Path) -> str:
    """Who holds a lock, by its file, in which processes that have ended may still have a line."""
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            process, host, since, command = (*line.split("\t", 3), "", "", "")[:4]
            if process.isdecimal() and (host != platform.node() or is_running(int(process))):
                return f"is in use by process {process} on {host} since {since} ({command})"
    return "is in use by another blockexport"


def _clear(place: Path) -> None:
    """Remove the leftovers beside `place`: its own, and those of other outputs whose lock nobody holds."""
    for path in list(place.parent.iterdir()):
        found = HIDDEN.fullmatch(path.name)
        if found is None:
            continue
        other = place.with_name(found["name"])
        if other == place:
            _remove(path, other, found["kind"])
            continue
        with suppress(OSError, UsageError):
            lock = FileLock.take(lock_place(other), wait=False)
            try:
                _remove(path, other, found["kind"])
            finally:
                lock.release()


def _remove(path: Path, place: Path, kind: str | None) -> None:
    if kind == PARTIAL:
        shutil.rmtree(path, ignore_errors=True)
    elif kind == OLD and os.path.lexists(place):
        remove_own(path)
    elif kind == OLD:  # killed between the two renames of a replacement
        os.rename(path, place)
