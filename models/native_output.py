"""Keep what a native library prints on file descriptor 2 out of the terminal, without silencing our own messages."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def captured_stderr() -> Iterator[Callable[[], str]]:
    """Send descriptor 2 into a file; the value gives the text so far. Python's own `sys.stderr` stays visible.

    TensorRT's compiler prints its internal errors there by itself, beside the logger that it was given.
    """
    with tempfile.TemporaryFile() as sink:
        saved, python_stderr = os.dup(2), sys.stderr
        python_stderr.flush()
        # Whoever writes to sys.stderr (a progress bar, say) goes on to the terminal by a descriptor of its own.
        direct = os.fdopen(os.dup(saved), "w", buffering=1) if _is_descriptor_2(python_stderr) else None
        os.dup2(sink.fileno(), 2)
        if direct is not None:
            sys.stderr = direct

        def text() -> str:
            size = os.fstat(sink.fileno()).st_size
            return os.pread(sink.fileno(), size, 0).decode(errors="replace").strip()

        try:
            yield text
        finally:
            if direct is not None:
                sys.stderr = python_stderr
                direct.close()
            os.dup2(saved, 2)
            os.close(saved)


def _is_descriptor_2(stream: object) -> bool:
    try:
        return stream.fileno() == 2  # type: ignore[attr-defined,no-any-return]
    except (AttributeError, OSError, ValueError):
        return False
