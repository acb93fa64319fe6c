"""Writing to a disk that may be full: ask before, say what is wrong after, leave nothing half-written."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
                f"no space was left for {shown(folder)} ({_free(folder)} bytes free): "
                "free some, or choose another output folder"
            ) from error
        if error.errno == errno.EFBIG:
            raise UsageError(
                f"a file in {shown(folder)} would be larger than this process or its file system allows: raise the "
                "limit (ulimit -f), or choose another output folder"
            ) from error
        raise


def _free(folder: Path) -> int:
    """Bytes free where a folder is or was: what failed may have taken it back."""
    return shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists())).free


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
def folders_made(*folders: Path) -> Iterator[None]:
    """Make folders with their missing parents; those that are empty when the block is left are taken back."""
    missing = {path for folder in folders for path in (folder, *folder.parents) if not path.exists()}
    try:
        for folder in folders:
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for path in sorted(missing, reverse=True):  # inner ones first
            with suppress(OSError):  # it holds something
                path.rmdir()
