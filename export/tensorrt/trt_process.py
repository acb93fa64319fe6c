"""TensorRT builds in a process of its own, for two reasons.

- TensorRT swallows a KeyboardInterrupt that lands in one of its callbacks. Here the process is ended instead.
- What makes TensorRT crash ends this process, and the user hears one message.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import tempfile
import traceback
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from blockexport.export.output.disk import disk_errors
from blockexport.export.tensorrt.child_process import command
from blockexport.export.tensorrt.trt_build import Built, Request, build_engine
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.progress import Progress, silent


def build_engine_file(request: Request, engine: Path, progress: Progress = silent) -> Built:
    """Build an engine, as `trt_build.build_engine` does, into the file `engine`.

    Raises:
        UsageError, NotJudgedError: as `build_engine`, and when TensorRT crashes or the machine's memory runs out.
    """
    ours, theirs = Pipe()
    with ours, tempfile.TemporaryFile() as said:
        descriptor = theirs.fileno()
        process = subprocess.Popen(
            command(__name__, descriptor), pass_fds=[descriptor], stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
        theirs.close()
        try:
            ours.send((request, engine))
            return _outcome(ours, progress)
        except (EOFError, ConnectionError):
            said.seek(0)
            raise _crash(request, process.wait(), said.read().decode(errors="replace")) from None
        finally:
            process.kill()
            process.wait()


def _outcome(connection: Connection, progress: Progress) -> Built:
    while True:
        kind, value = connection.recv()
        if kind == "progress":
            progress(*value)
        elif kind == "built":
            assert isinstance(value, Built)
            return value
        else:
            raise value


def _crash(request: Request, status: int, said: str) -> Exception:
    what = f"{request.backend} ended in the middle of the build"
    if status == -signal.SIGKILL:
        return NotJudgedError(
            f"{what}: it was killed, most likely because memory ran out. Choose a smaller --max-batch-size or "
            "--max-prefill, or a machine with more memory"
        )
    cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    last = said.strip().rsplit("\n", 1)[-1]
    return UsageError(
        f"{what} ({cause}{': ' + last if last else ''}): a graph that `blockexport lint` finds clean should not do "
        "that, so please report this message"
    )


def serve(connection: Connection) -> None:
    """The process's work: one request, and its outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the process that waits for us
    request, path = connection.recv()
    try:
        engine, built = build_engine(request, lambda *step: connection.send(("progress", step)))
        with disk_errors(request.folder):
            path.write_bytes(engine)
        connection.send(("built", built))
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
