"""Files that several processes may be changing: written beside their place under a name of their own, then renamed.

A process that is killed cannot clean up, so the name says whose it is, and the next writer removes what is left over.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

LOCK = ".manifest.lock"


def partial_path(path: Path) -> Path:
    """Where to write what is to become `path`: beside it, hidden, and no other process's or thread's."""
    return path.with_name(f".{path.name}.{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}.partial")


def remove_abandoned(folder: Path) -> None:
    """Remove the partial files in `folder` of processes of this machine that are gone.

    Those of other machines are left: whether their process lives cannot be seen from here.
    """
    ours = re.compile(rf"\..+\.{re.escape(platform.node())}-(\d+)-[0-9a-f]{{8}}\.partial")
    for path in folder.glob(".*.partial"):
        found = ours.fullmatch(path.name)
        if found is not None and not _is_running(int(found[1])):
            path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 asks only
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a bundle against other writers of its manifest; waits for them, which takes them milliseconds.

    The lock is a file, for a network file system locks no folder. It is removed by whoever holds it, so a lock just
    obtained is looked at again: it counts only if its file is still the one that the next process would find.
    """
    import fcntl  # POSIX only; all else works without

    path = folder / LOCK
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, path):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def signals_deferred() -> Iterator[None]:
    """SIGINT and SIGTERM wait until the body is done, and then have their usual effect.

    Other threads than the main one cannot set handlers, and are not interrupted by signals either.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
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
                older = partial_path(place) if place.exists() else None
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
