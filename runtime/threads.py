"""How many processor threads to compute with: the cores that this process may use, unless somebody says otherwise.

More threads than cores make a computation slower, and inside a container the machine's own number is the wrong one: the
kernel may give the process fewer cores (its affinity), or a share of their time (its control group's quota).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from blockexport.models.errors import UsageError

LIMIT = 64  # threads that may be asked for on a machine with fewer processors


def use_threads(asked: int | None = None) -> int:
    """Let PyTorch, and every ONNX Runtime session opened later, compute with `asked` threads; returns their number.

    Args:
        asked: None takes OMP_NUM_THREADS where the environment has it, or else the cores of `usable_cores`.

    Raises:
        UsageError: less than one, or far more than the machine has processors.
    """
    import torch

    count = chosen_threads(asked)
    torch.set_num_threads(count)
    return count


def chosen_threads(asked: int | None = None) -> int:
    """How many threads `use_threads` lets compute, without PyTorch.

    Raises:
        UsageError: as `use_threads`.
    """
    limit = most_threads()
    if asked is not None and not 1 <= asked <= limit:
        raise UsageError(f"--threads {asked} is outside 1..{limit}: choose at most the cores of this machine")
    return asked or _environment() or usable_cores()


def most_threads() -> int:
    """The most threads that may be asked for: tens of thousands would hang the process."""
    return max(LIMIT, os.cpu_count() or 1)


def usable_cores(system: Path = Path("/")) -> int:
    """Physical cores that this process may run on, at most its control group's quota; at least 1.

    Args:
        system: where `sys` and `proc` are; for tests.
    """
    cpus = _allowed()
    topology = system / "sys/devices/system/cpu"
    cores = {_read(topology / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus}
    quotas = [math.floor(quota) for quota in _quotas(system)]
    return max(1, min([len(cores), *quotas]))


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _environment() -> int | None:
    """The first number of OMP_NUM_THREADS, which may list one for each level of nesting."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def _quotas(system: Path) -> Iterator[float]:
    """Cores' worth of time that each control group above the process allows, where one has a limit."""
    for line in _read(system / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        unified = controllers == ""
        if not unified and "cpu" not in controllers.split(","):
            continue
        root = system / "sys/fs/cgroup" / ("" if unified else "cpu")
        # Inside a container the path may be the host's, and the files lie at the root.
        inside = PurePosixPath(*(part for part in path.split("/") if part and part != ".."))
        for folder in {root / part for part in (inside, *inside.parents)}:
            words = _limits(folder, unified)
            if len(words) == 2 and all(word.isdecimal() and int(word) > 0 for word in words):
                yield int(words[0]) / int(words[1])


def _limits(folder: Path, unified: bool) -> list[str]:
    """Quota and period, in microseconds."""
    if unified:
        return _read(folder / "cpu.max").split()
    return [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
