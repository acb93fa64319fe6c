"""A file for a library that ends the whole process when it cannot write, such as PyTorch's writer of zip archives."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast


class _PatientFile(io.RawIOBase):
    """Takes everything; after the first error it writes nothing more, and keeps the error."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Nothing: the file is written in order, and writers rewind it when they are done."""
        return 0

    def write(self, data: Any, /) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest and self.error is None:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                self.error = error
        return size


@contextmanager
def patient_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file at `path`, to be written in order.

    Raises:
        OSError: it could not be written; told when the body is done, whatever that made of it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    file = _PatientFile(descriptor)
    try:
        yield cast(IO[bytes], file)
    finally:
        os.close(descriptor)
        if file.error is not None:
            raise file.error
