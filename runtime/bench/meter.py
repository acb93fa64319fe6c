"""What the system tells: the time, the energy of the processor and its name, the memory of this process."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from blockexport.runtime.bench.bench_plan import Memory

RAPL = Path("sys/class/powercap")


class EnergyCounter:
    """Energy of all processor packages from a moment on, as Linux tells it of Intel's and AMD's (RAPL).

    Args:
        system: where `sys` is; for tests.
    """

    def __init__(self, system: Path = Path("/")) -> None:
        # intel-rapl:0 is a package; intel-rapl:0:0 a part of it, which would be counted twice.
        folders = sorted((system / RAPL).glob("intel-rapl:*")) if (system / RAPL).is_dir() else []
        self._packages = [folder for folder in folders if re.fullmatch(r"intel-rapl:\d+", folder.name)]
        self._last = self._read()
        self._joules = 0.0

    def joules(self) -> float | None:
        """Since this counter was made; None where there is no package, or its counter may not be read."""
        now = self._read()
        if now is None or self._last is None:
            return None
        for folder, before, after in zip(self._packages, self._last, now, strict=True):
            # The counter starts anew after its range.
            lap = 0 if after >= before else int((folder / "max_energy_range_uj").read_text()) + 1
            self._joules += (after + lap - before) / 1e6
        self._last = now
        return self._joules

    def _read(self) -> list[int] | None:
        try:
            return [int((folder / "energy_uj").read_text()) for folder in self._packages] or None
        except (OSError, ValueError):
            return None


@dataclass(frozen=True)
class Reading:
    """A moment: seconds, and joules where they are told."""

    seconds: float
    joules: float | None

    def since(self, before: Reading) -> Reading:
        """What has passed."""
        both = self.joules is not None and before.joules is not None
        return Reading(self.seconds - before.seconds, self.joules - before.joules if both else None)  # type: ignore[operator]


@dataclass(frozen=True)
class Meter:
    """Reads the clock and the energy counter.

    Attributes:
        clock: seconds, from any moment on.
        joules: likewise; gives None where they are not told.
    """

    clock: Callable[[], float] = time.perf_counter
    joules: Callable[[], float | None] = field(default_factory=lambda: EnergyCounter().joules)

    def read(self) -> Reading:
        """Now."""
        return Reading(self.clock(), self.joules())

    def over(self, work: Callable[[], None]) -> Reading:
        """What `work` takes."""
        before = self.read()
        work()
        return self.read().since(before)


def memory_of_this_process(status: Path = Path("/proc/self/status")) -> Memory:
    """As Linux tells it."""
    try:
        text = status.read_text(errors="replace")  # holds the process's name, which may be any bytes
    except OSError:
        text = ""
    lines = re.findall(r"^((?:Vm|Rss)\w+):\s+(\d+) kB$", text, re.MULTILINE)
    found = {name: int(count) * 1024 for name, count in lines}
    return Memory(found.get("VmRSS"), found.get("RssAnon"), found.get("VmHWM"))


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the system calls the processor; empty where it does not say."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Hardware")))
    return next(names, "")
