"""The figures of a benchmark: every sample, and what is made of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from blockexport.models.roofline import MachineSpeed, prefill_work, step_work
from blockexport.runtime.bench.bench_plan import BenchCase, BenchPlan, CaseSample, Memory, Side, Turn

SCHEMA_VERSION = 1
ENOUGH = 5  # samples of a median that may be published


@dataclass(frozen=True)
class Spread:
    """Samples of one figure, in the order of the rounds."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.samples)

    @property
    def lowest(self) -> float:
        """The least."""
        return min(self.samples)

    @property
    def highest(self) -> float:
        """The largest."""
        return max(self.samples)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"median": self.median, "lowest": self.lowest, "highest": self.highest, "samples": list(self.samples)}


@dataclass(frozen=True)
class PhaseFigures:
    """What one side took for the prompt of a case, or for a step after it.

    Attributes:
        seconds: until the prompt's first new token; or of one step.
        tokens: that are run meanwhile, of all rows together.
        share: of the speed that the roofline allows; None where that is not known.
        joules_per_token: of the whole processor; None where the machine does not tell.
        times_first: how many times as long it takes as on the first side: the median over the rounds.
    """

    seconds: Spread
    tokens: int
    share: float | None
    joules_per_token: float | None
    times_first: float

    @property
    def tokens_per_second(self) -> float:
        """Of all rows together."""
        return self.tokens / self.seconds.median

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "seconds": self.seconds.to_json(),
            "tokens_per_second": self.tokens_per_second,
            "share_of_roofline": self.share,
            "joules_per_token": self.joules_per_token,
            "times_first_side": self.times_first,
        }


@dataclass(frozen=True)
class CaseFigures:
    """What one side took for one case."""

    case: BenchCase
    prefill: PhaseFigures
    decode: PhaseFigures

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "batch_size": self.case.batch_size,
            "context": self.case.context,
            "prefill": self.prefill.to_json(),
            "decode": self.decode.to_json(),
        }


@dataclass(frozen=True)
class SideFigures:
    """What one side took: to load, in memory before that and at the end, and for each case."""

    side: Side
    version: str
    load_seconds: Spread
    before: Memory
    after: Memory
    cases: tuple[CaseFigures, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        footprint = self.side.footprint
        return {
            "name": self.side.name,
            "path": str(self.side.path),
            "backend": self.side.backend,
            "version": self.version,
            "notes": list(self.side.notes),
            "weight_bytes_per_step": None if footprint is None else footprint.weight_bytes,
            "load_seconds": self.load_seconds.to_json(),
            "memory_bytes_before_load": asdict(self.before),
            "memory_bytes": asdict(self.after),
            "cases": [case.to_json() for case in self.cases],
        }


@dataclass(frozen=True)
class BenchResult:
    """A whole benchmark.

    Attributes:
        plan: what was asked.
        processor: what the system calls it.
        speeds: what this machine does at most, by device.
        sides: the first is what the others are held against.
    """

    plan: BenchPlan
    processor: str
    speeds: dict[str, MachineSpeed]
    sides: tuple[SideFigures, ...]

    @property
    def enough(self) -> bool:
        """Whether the medians are of as many samples as may be published."""
        return self.plan.rounds >= ENOUGH

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: bytes, seconds and operations unrounded."""
        return {
            "schema_version": SCHEMA_VERSION,
            "rounds": self.plan.rounds,
            "steps": self.plan.steps,
            "threads": self.plan.threads,
            "processor": self.processor,
            "machine": [asdict(speed) for speed in self.speeds.values()],
            "sides": [side.to_json() for side in self.sides],
        }


def side_figures(
    side: Side, turns: Sequence[Turn], first: Sequence[Turn], plan: BenchPlan, speed: MachineSpeed
) -> SideFigures:
    """What the turns of a side come to, with those of the first side to hold them against."""
    samples = [[turn.samples[i] for turn in turns] for i in range(len(plan.cases))]
    others = [[turn.samples[i] for turn in first] for i in range(len(plan.cases))]
    return SideFigures(
        side,
        turns[-1].version,
        Spread(tuple(turn.load_seconds for turn in turns)),
        _median_memory([turn.before for turn in turns]),
        _median_memory([turn.after for turn in turns]),
        tuple(
            _case_figures(side, case, own, other, plan.steps, speed)
            for case, own, other in zip(plan.cases, samples, others, strict=True)
        ),
    )


def _case_figures(
    side: Side,
    case: BenchCase,
    samples: Sequence[CaseSample],
    first: Sequence[CaseSample],
    steps: int,
    speed: MachineSpeed,
) -> CaseFigures:
    least_prefill = least_step = None
    if side.footprint is not None:
        least_prefill = prefill_work(side.footprint, case).seconds(speed)
        least_step = step_work(side.footprint, case, steps).seconds(speed) / steps
    rows, context = case
    return CaseFigures(
        case,
        _phase(
            [sample.first_token_seconds for sample in samples],
            [sample.first_token_seconds for sample in first],
            [sample.prefill_joules for sample in samples],
            tokens=rows * context,
            least=least_prefill,
        ),
        _phase(
            [sample.decode_seconds / steps for sample in samples],
            [sample.decode_seconds / steps for sample in first],
            [None if sample.decode_joules is None else sample.decode_joules / steps for sample in samples],
            tokens=rows,
            least=least_step,
        ),
    )


def _phase(
    seconds: Sequence[float],
    first: Sequence[float],
    joules: Sequence[float | None],
    *,
    tokens: int,
    least: float | None,
) -> PhaseFigures:
    """The figures of one side's samples, with those of the first side and the least seconds that are possible."""
    spread, energy = Spread(tuple(seconds)), _median(joules)
    return PhaseFigures(
        spread,
        tokens,
        None if least is None else least / spread.median,
        None if energy is None else energy / tokens,
        # What slows a whole round down is in both figures of its pair.
        statistics.median(own / other for own, other in zip(seconds, first, strict=True)),
    )


def _median_memory(taken: Sequence[Memory]) -> Memory:
    medians = (_median(getattr(one, field.name) for one in taken) for field in fields(Memory))
    return Memory(*(None if value is None else round(value) for value in medians))


def _median(values: Iterable[float | None]) -> float | None:
    """None where any is not told."""
    told = list(values)
    known = [value for value in told if value is not None]
    return statistics.median(known) if len(known) == len(told) else None
