"""Writing to a disk that may be full: ask before, say what is wrong after, leave nothing half-written."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from blockexport.export.output.hidden_names import shown
from blockexport.models.errors import UsageError


def check_free_space(folder: Path, needed: int) -> None:
    """Raise UsageError when the file system of `folder` has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UsageError(
            f"{shown(folder)} needs {needed} bytes and its file system has {free} free: "
            "free some, or choose another output folder"
        )


@contextmanager
def space_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError about space, met while `folder` is written to, into a UsageError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UsageError(
                f"no space was left for {shown(folder)} ({shutil.disk_usage(folder).free} bytes free): "
                "free some, or choose another output folder"
            ) from error
        if error.errno == errno.EFBIG:
            raise UsageError(
                f"a file in {shown(folder)} would be larger than this process or its file system allows: raise the "
                "limit (ulimit -f), or choose another output folder"
            ) from error
        raise


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError of writing into `folder` into a UsageError that says what to do."""
    try:
        with space_errors(folder):
            yield
    except OSError as error:
        where = error.filename or shown(folder)
        raise UsageError(
            f"{where} cannot be read or written: {error.strerror or error}. Choose another path"
        ) from error


@contextmanager
def removed_on_failure() -> Iterator[Callable[[Path], None]]:
    """Yields a function to call with each file about to be made; those files are removed when the body raises.

    The function raises UsageError for a file that is already there, which is then left alone.
    """
    claimed: list[Path] = []

    def claim(path: Path) -> None:
        if path.exists():
            raise UsageError(f"{path} is in the way: remove it, or choose another output folder")
        claimed.append(path)

    try:
        yield claim
    except BaseException:
        for path in claimed:
            path.unlink(missing_ok=True)
        raise
