"""Sides that run nothing: their figures are made up, so that what is made of them can be held against sums by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockexport.models.roofline import Footprint, MachineSpeed
from blockexport.runtime.bench.bench_plan import BenchCase, BenchPlan, CaseSample, Memory, Side, Turn
from blockexport.runtime.bench.turn import SideRequest, SpeedRequest
from tests.small_models import small_config

PLAN = BenchPlan((BenchCase(1, 7), BenchCase(3, 11)), steps=4, rounds=5, threads=2)
SPEED = MachineSpeed("cpu", memory_bandwidth=2e9, matrix_peak=5e9, matrix_type="float32")


def made_up_side(name: str, **changes: Any) -> Side:
    """Of the small model, with 1,000,003 bytes of weights."""
    given: dict[str, Any] = {
        "runner": f"{__name__}:nothing",
        "path": Path(name),
        "vocab_size": 97,
        "capacity": 29,
        "footprint": Footprint(small_config(), 1_000_003, 4),
        **changes,
    }
    return Side(name, **given)


@dataclass
class MadeUp:
    """Answers requests as processes would: a turn of a side takes `seconds[name]` times the number of the round."""

    seconds: dict[str, float]
    asked: list[str] = field(default_factory=list)

    def __call__(self, request: SideRequest | SpeedRequest, told: Callable[..., None]) -> Turn | MachineSpeed:
        if isinstance(request, SpeedRequest):
            self.asked.append(request.device)
            slower = 1 + 0.5 * (self.asked.count(request.device) % 2)
            return MachineSpeed(request.device, 2e9 / slower, 5e9 / slower, request.dtype)
        name = request.side.name
        self.asked.append(name)
        unit = self.seconds[name] * self.asked.count(name)
        told()
        samples = []
        for case in request.plan.cases:
            rows = case.batch_size
            samples.append(CaseSample(unit * rows, 10 * unit * rows, unit, 6 * unit))
            told()
        memory = int(unit * 1e6)
        after = Memory(3 * memory, 2 * memory, 4 * memory)
        return Turn(f"{name} 1.2", 100 * unit, tuple(samples), Memory(memory, None, None), after)
