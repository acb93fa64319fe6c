"""TensorRT builds in a process of its own, for three reasons.

- TensorRT for RTX writes some tables of an engine in the order of its objects' addresses. In this process memory is
  handed out in the same order from build to build, and so an engine gets the same bytes.
- TensorRT swallows a KeyboardInterrupt that lands in one of its callbacks. Here the process is ended instead.
- What makes TensorRT crash ends this process, and the user hears one message.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from blockexport.export.bundle.manifest import Manifest
from blockexport.export.output.disk import disk_errors
from blockexport.export.tensorrt.trt_adapter import BuildOptions, load_backend
from blockexport.export.tensorrt.trt_build import Built, build_engine
from blockexport.export.tensorrt.trt_network import Profile
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.progress import Progress, silent

# Without a limit each thread takes from what it freed itself, last first, so that addresses follow from a thread's own
# requests and not from how threads take turns. (glibc's manual, "Memory Allocation Tunables"; 65535 is the most.)
THREAD_CACHE = "glibc.malloc.tcache_count"
ADDR_NO_RANDOMIZE = 0x0040000  # personality(2): the heap begins at the same address each time
QUERY = 0xFFFFFFFF


@dataclass(frozen=True)
class Request:
    """What is to be built, and the file it goes to."""

    backend: str
    folder: Path
    manifest: Manifest
    targets: Sequence[str]
    profiles: Sequence[Profile]
    options: BuildOptions
    engine: Path


def build_engine_file(request: Request, progress: Progress = silent) -> Built:
    """Build an engine, as `trt_build.build_engine` does, into the file `request.engine`.

    Raises:
        UsageError, NotJudgedError: as `build_engine`, and when TensorRT crashes or the machine's memory runs out.
    """
    ours, theirs = Pipe()
    with ours, tempfile.TemporaryFile() as said, _fixed_addresses():
        command = [sys.executable, "-P", "-m", __name__, str(theirs.fileno())]
        process = subprocess.Popen(
            command, env=_environment(), pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
        theirs.close()
        try:
            ours.send(request)
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
            f"{what}: it was killed, most likely for want of memory. Choose a smaller --max-batch-size or "
            "--max-prefill, or a machine with more memory"
        )
    cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    last = said.strip().rsplit("\n", 1)[-1]
    return UsageError(
        f"{what} ({cause}{': ' + last if last else ''}): a graph that `blockexport lint` finds clean should not do "
        "that, so please report this message"
    )


def _environment() -> dict[str, str]:
    others = [t for t in os.environ.get("GLIBC_TUNABLES", "").split(":") if t and not t.startswith(THREAD_CACHE)]
    # Python's own objects come from the same heap, and the order of a set decides about some of them.
    tunables = ":".join([*others, f"{THREAD_CACHE}=65535"])
    return {**os.environ, "GLIBC_TUNABLES": tunables, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}


@contextmanager
def _fixed_addresses() -> Iterator[None]:
    """Processes started inside have their memory at the same addresses each time, where the system lets us choose."""
    before = _personality(QUERY)
    changed = before >= 0 and _personality(before | ADDR_NO_RANDOMIZE) >= 0
    try:
        yield
    finally:
        if changed:
            _personality(before)


def _personality(persona: int) -> int:
    """personality(2): the one before, or -1."""
    return int(ctypes.CDLL(None).personality(ctypes.c_ulong(persona))) if sys.platform == "linux" else -1


def _serve(connection: Connection) -> None:
    """The process's work: one request, and its outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the process that waits for us
    request: Request = connection.recv()
    try:
        adapter = load_backend(request.backend)
        if adapter.is_rtx:
            _take_turns()
        engine, built = build_engine(
            adapter,
            request.folder,
            request.manifest,
            request.targets,
            request.profiles,
            request.options,
            lambda *step: connection.send(("progress", step)),
        )
        with disk_errors(request.folder):
            request.engine.write_bytes(engine)
        persona = _personality(QUERY)
        fixed = persona >= 0 and bool(persona & ADDR_NO_RANDOMIZE)
        connection.send(("built", replace(built, addresses_fixed=fixed)))
    except Exception as error:
        connection.send(("failed", _portable(error)))


def _take_turns() -> None:
    """One processor for all threads, and none of them interrupted by another that wakes: their turns, too, decide where
    objects lie. The builder works in one thread nearly all the time, so this costs nothing.
    """
    if hasattr(os, "sched_setaffinity"):  # Linux
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[os.getpid() % len(processors)]})
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _portable(error: Exception) -> Exception:
    """`error`, or its words where it cannot leave this process, with the place it came from."""
    where = traceback.format_exc()
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = RuntimeError(repr(error))
    copy.add_note(where)
    return copy


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
