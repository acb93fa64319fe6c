"""Work on a stranger's program, in a process of its own that ends where its time or memory does.

No limit inside this process would hold: a power of two numbers, a format string or a regular expression is a single
step to Python. What is run is a module whose main part calls `serve`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from blockexport.models.errors import BlockexportError


@dataclass(frozen=True)
class Bounds:
    """`cpu_seconds` of processor time, `memory_bytes` of address space (where the system has such limits: POSIX)."""

    cpu_seconds: int
    memory_bytes: int

    @property
    def wall_seconds(self) -> int:
        """After which it is ended on a machine however busy: long, for processor time is what a stranger can spend, and
        a process that was suspended for a while is none of theirs."""
        return 120 + 5 * self.cpu_seconds


class OutOfBounds(BlockexportError):
    """The work needs more than its bounds, or broke its process down."""


def run_bounded(module: str, request: Any, bounds: Bounds) -> Any:
    """What `serve` in `module` makes of `request`, both of them JSON values.

    Raises:
        OutOfBounds: it takes more time or memory than `bounds`, or its process ended otherwise without an answer.
    """
    given = json.dumps({"bounds": asdict(bounds), "request": request}).encode()
    command = [sys.executable, "-P", "-m", module]
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=bounds.wall_seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise OutOfBounds(f"it took more than {bounds.wall_seconds} s") from error
    if done.returncode == 0:
        return json.loads(done.stdout)
    if done.returncode in _OUT_OF_TIME:
        raise OutOfBounds(f"it took more than {bounds.cpu_seconds} s of processor time")
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode == _NO_MEMORY or "memory allocation of" in said or done.returncode == -signal.SIGKILL:
        raise OutOfBounds(f"it took more than {bounds.memory_bytes >> 20} MiB of memory")
    lines = [line for line in said.splitlines() if not line.startswith(("  ", "note:", "stack backtrace"))]
    raise OutOfBounds(lines[-1] if lines else f"its process ended with {done.returncode}")


_NO_MEMORY = 3
_OUT_OF_TIME = [-getattr(signal, name) for name in ("SIGPROF", "SIGXCPU") if hasattr(signal, name)]


def serve(work: Callable[[Any], Any]) -> None:
    """The process's side: one request from stdin, and what `work` makes of it on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the process that waits for us
    given = json.load(sys.stdin.buffer)
    _limit(Bounds(**given["bounds"]))
    try:
        answer = json.dumps(work(given["request"]))
    except MemoryError:
        sys.exit(_NO_MEMORY)
    sys.stdout.write(answer)


def _limit(bounds: Bounds) -> None:
    try:
        import resource
    except ImportError:  # Windows: the time on the wall is all there is
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 2 + bounds.cpu_seconds
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (bounds.memory_bytes, bounds.memory_bytes))
    signal.setitimer(signal.ITIMER_PROF, bounds.cpu_seconds)  # counts processor time, and ends the process
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # in whole seconds: should the timer be lost
