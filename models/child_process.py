"""Work in a process of its own, which ends when its parent does, even when that is killed.

What crashes there ends that process, and the parent can say so; and the parent can end it at any moment. The work is
the `serve` of a module. The process is `python -m THIS MODULE MODULE PARENT DESCRIPTOR`; nothing heavy is imported in
it before its end is tied to its parent's.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any

PR_SET_PDEATHSIG = 1  # prctl(2)

Told = Callable[..., None]
"""Sends a message to the parent, which hears its arguments."""


class ChildEnded(Exception):
    """The process ended without an outcome.

    Attributes:
        status: its exit status, or minus the signal that ended it.
        last: the last line that it printed, empty where it printed nothing.
    """

    def __init__(self, status: int, last: str) -> None:
        super().__init__(status, last)
        self.status, self.last = status, last

    @property
    def killed(self) -> bool:
        """Whether it was killed, which is what the system does where memory runs out."""
        return self.status == -signal.SIGKILL

    @property
    def cause(self) -> str:
        """The signal or exit status, with the last line."""
        name = signal.Signals(-self.status).name if self.status < 0 else f"exit status {self.status}"
        return f"{name}{': ' + self.last if self.last else ''}"


def outcome_of(
    module: str, request: object, listen: Callable[..., None], environment: Mapping[str, str] | None = None
) -> Any:
    """What the `serve` of `module` makes of a request in a process of its own, which has ended then.

    Args:
        module: where that function is; it hands its work to `serve_one`.
        request: what is to be done, sent by pickling.
        listen: called with what the work tells on its way.
        environment: of the process, when other than this one's.

    Raises:
        ChildEnded: it ended without an outcome.
        Exception: as the work does.
    """
    ours, theirs = Pipe()
    with ours, tempfile.TemporaryFile() as said:
        descriptor = theirs.fileno()
        process = subprocess.Popen(
            command(module, descriptor),
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=environment,
        )
        theirs.close()
        try:
            ours.send(request)
            return _outcome(ours, listen)
        except (EOFError, ConnectionError):
            status = process.wait()
            said.seek(0)
            raise ChildEnded(status, said.read().decode(errors="replace").strip().rsplit("\n", 1)[-1]) from None
        finally:
            process.kill()
            process.wait()


def _outcome(connection: Connection, listen: Callable[..., None]) -> Any:
    while True:
        kind, value = connection.recv()
        if kind == "told":
            listen(*value)
        elif kind == "done":
            return value
        else:
            raise value


def serve_one(connection: Connection, work: Callable[[Any, Told], Any]) -> None:
    """The process's side: one request, and its outcome, an exception included."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the process that waits for us
    request = connection.recv()
    try:
        connection.send(("done", work(request, lambda *message: connection.send(("told", message)))))
    except Exception as error:
        connection.send(("failed", _portable(error)))


def _portable(error: Exception) -> Exception:
    """`error`, or its words where it cannot leave this process, with the place it came from."""
    where = traceback.format_exc()
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = RuntimeError(repr(error))
    copy.add_note(where)
    return copy


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
