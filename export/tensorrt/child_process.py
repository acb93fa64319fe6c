"""A process that ends when its parent does, even when that is killed: `python -m THIS MODULE PARENT DESCRIPTOR`.

Nothing heavy is imported before this is so; then MODULE's `serve` gets the connection to the parent.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from multiprocessing.connection import Connection

PR_SET_PDEATHSIG = 1  # prctl(2)


def command(module: str, descriptor: int) -> list[str]:
    """The command line of such a process, which the caller starts from the thread that will wait for it."""
    return [sys.executable, "-P", "-m", __name__, module, str(os.getpid()), str(descriptor)]


def _end_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before that
        sys.exit(1)


if __name__ == "__main__":
    _end_with(int(sys.argv[2]))
    importlib.import_module(sys.argv[1]).serve(Connection(int(sys.argv[3])))
