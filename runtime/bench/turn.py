"""One side's turn, in a process of its own: open it, run every case, and say what that took."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

from blockexport.models.child_process import Told, serve_one
from blockexport.models.roofline import MachineSpeed
from blockexport.runtime.bench.bench_plan import BenchPlan, CaseSample, Memory, Side, Turn, prompt_ids
from blockexport.runtime.bench.meter import Meter
from blockexport.runtime.bench.runner import Runner, open_runner

WARM_STEPS = 2  # untimed, after an untimed run of the prompt


class SideRequest(NamedTuple):
    """A turn that is asked of a process; `vocab_size` is that of the prompts."""

    side: Side
    plan: BenchPlan
    vocab_size: int


class SpeedRequest(NamedTuple):
    """A measurement of the machine that is asked of a process: see `measure_speed`."""

    device: str
    threads: int
    dtype: str


def take_turn(
    runner: Runner,
    request: SideRequest,
    told: Callable[[], None],
    meter: Meter | None = None,
    memory: Callable[[], Memory] | None = None,
) -> Turn:
    """Everything that a process measures of its side.

    Args:
        runner: has been made and not loaded.
        request: what is to be run.
        told: called after loading, and after each case.
        meter: what measures, other than this machine's; for tests.
        memory: likewise, other than the runner's.
    """
    plan = request.plan
    if meter is None:  # what a processor takes says nothing of a GPU
        meter = Meter() if request.side.device == "cpu" else Meter(joules=lambda: None)
    memory = memory or runner.memory
    before = memory()
    loading = meter.over(runner.load)
    told()
    samples: list[CaseSample] = []
    for case in plan.cases:
        prompt = prompt_ids(case, request.vocab_size)
        runner.run(prompt, min(WARM_STEPS, plan.steps), meter)
        samples.append(runner.run(prompt, plan.steps, meter))
        told()
    return Turn(runner.version, loading.seconds, tuple(samples), before, memory())


def serve(connection: Connection) -> None:
    """The process's work: one request."""
    serve_one(connection, _measure)


def _measure(request: SideRequest | SpeedRequest, told: Told) -> Turn | MachineSpeed:
    if isinstance(request, SpeedRequest):
        from blockexport.runtime.bench.machine_speed import measure_speed

        return measure_speed(*request)
    return take_turn(open_runner(request.side, request.plan), request, told)
