"""A lock that ends with its process: flock on a file that is there for nothing else.

flock is taken on a file, for a network file system locks no folder.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

from blockexport.models.errors import UsageError

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""What a file system without locks answers."""


class FileLock:
    """A lock that is held until `release`. Its file is removed by whoever holds it last."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, *, shared: bool = False, wait: bool = True, line: str = "") -> Self:
        """Hold the lock at `path`, with others where all of them are `shared`; its file gets `line`.

        A lock just obtained counts only if its file is still the one that the next process would find, for the one
        before may have removed it.

        Raises:
            BlockingIOError: without `wait`, another process holds it.
            OSError: the file cannot be made, or its file system has no locks.
            UsageError: a link, a pipe or a device has its name.
        """
        import fcntl  # POSIX only; all else works without

        kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        while True:
            descriptor = _opened(path)
            try:
                fcntl.flock(descriptor, kind)
            except BaseException:
                os.close(descriptor)
                raise
            lock = cls(path, descriptor)
            if not _is_at(descriptor, path):
                os.close(descriptor)
                continue
            try:
                if not shared:
                    os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{line}\n".encode(errors="replace") if line else b"")
            except BaseException:  # the disk is full
                lock.release()
                raise
            return lock

    def share(self) -> None:
        """Let others share it. Raises BlockingIOError when another process was faster and holds it alone now."""
        import fcntl

        fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def release(self) -> None:
        """Give the lock back, and remove its file unless others share it."""
        import fcntl

        with suppress(BlockingIOError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(self._descriptor, self._path):
                self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _opened(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    raise UsageError(f"{path} is the name of a lock, and lies there as something else than a file: remove it")


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
