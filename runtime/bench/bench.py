"""A benchmark: several sides in turns, each turn in a process of its own, so that one runs at a time.

A machine that is slow for a while is slow for all, and what one library leaves behind (threads that spin, memory that
it keeps) is gone before the next begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blockexport.models import openmp
from blockexport.models.child_process import ChildEnded, outcome_of
from blockexport.models.errors import NotJudgedError
from blockexport.models.progress import Progress, silent
from blockexport.models.roofline import MachineSpeed
from blockexport.runtime.bench import turn as turn_module
from blockexport.runtime.bench.bench_plan import BenchPlan, Side, Turn
from blockexport.runtime.bench.bench_result import BenchResult, side_figures
from blockexport.runtime.bench.turn import SideRequest, SpeedRequest

Asker = Callable[[SideRequest | SpeedRequest, Callable[..., None]], Any]
"""Has a request done, tells of its stages, and returns what came of it: a `Turn`, a `MachineSpeed`."""


def run_bench(
    sides: Sequence[Side], plan: BenchPlan, processor: str, progress: Progress = silent, ask: Asker | None = None
) -> BenchResult:
    """Every side's figures.

    Args:
        sides: what is run; the others are held against the first.
        plan: what each does.
        processor: its name, for the result.
        progress: told how far the work is.
        ask: has a request done; by default in a process of its own.

    Raises:
        UsageError, NotJudgedError: what a side cannot do; and when its process is killed, most likely for its memory.
    """
    ask = ask or in_a_process
    turns: list[list[Turn]] = [[] for _ in sides]
    speeds: dict[str, MachineSpeed] = {}
    devices = {side.device: side.element for side in sides}
    stages = plan.rounds * (len(sides) * (1 + len(plan.cases)) + len(devices))
    done = 0

    def count(*told: object) -> None:
        nonlocal done
        done += 1
        progress("measuring", done, stages)

    progress("measuring", 0, stages)
    for _ in range(plan.rounds):
        for side, taken in zip(sides, turns, strict=True):
            taken.append(ask(SideRequest(side, plan, sides[0].vocab_size), count))
        for device, element in devices.items():
            speed: MachineSpeed = ask(SpeedRequest(device, plan.threads, element), lambda: None)
            speeds[device] = speeds[device].best(speed) if device in speeds else speed
            count()
    figures = (
        side_figures(side, taken, turns[0], plan, speeds[side.device]) for side, taken in zip(sides, turns, strict=True)
    )
    return BenchResult(plan, processor, speeds, tuple(figures))


def in_a_process(request: SideRequest | SpeedRequest, told: Callable[..., None]) -> Any:
    """What a process of its own makes of a request.

    Raises:
        NotJudgedError: it ended without an outcome.
        Exception: as the work does.
    """
    ours = not isinstance(request, SideRequest) or request.side.is_ours
    try:
        return outcome_of(turn_module.__name__, request, told, _environment(ours))
    except ChildEnded as end:
        what = request.side.name if isinstance(request, SideRequest) else "the measurement of the machine"
        why = "it was killed, most likely because memory ran out" if end.killed else end.cause
        raise NotJudgedError(
            f"{what} ended in the middle of its turn ({why}): leave it out, or take a machine with more memory"
        ) from None


def _environment(ours: bool) -> Mapping[str, str]:
    """As our own commands set it up (`cli/main.py`), or as the library of another tool finds it without them."""
    environment = dict(os.environ)
    (openmp.let_wait if ours else openmp.let_be)(environment)
    return environment
