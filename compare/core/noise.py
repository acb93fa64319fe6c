"""The noise floor, which is eager's own error, and the verdict on a stretch of positions against it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from blockexport.compare.core.figures import StretchFigures
from blockexport.compare.core.logit_distance import Distances, Errors
from blockexport.compare.core.tolerances import (
    LUCK,
    MAX_FACTOR,
    RMS_FACTOR,
    RMS_LUCK,
    ROUNDING_MAX,
    ROUNDING_RMS,
    TIE_FACTOR,
)

DOUBTFUL = 1 / 8  # of the positions: a defect that shows at more of them needs no second look


@dataclass(frozen=True)
class Floor:
    """Eager's error on the same positions, never below what rounding the logits costs.

    Attributes:
        rms: over all positions.
        rms_P: at each position, float64 [P].
        max_P: the largest difference at each.
        bearing: how many positions bear the error: their number where all have the same, 1 where one has all of it.
        finite_P: False where eager itself overflows in this precision, bool [P].
    """

    rms: float
    rms_P: torch.Tensor
    max_P: torch.Tensor
    bearing: float
    finite_P: torch.Tensor

    @property
    def finite(self) -> bool:
        """Whether eager overflows nowhere; else nothing can be judged by it."""
        return bool(self.finite_P.all())

    @property
    def rms_limit(self) -> float:
        """How many times eager's rms an artifact's may be."""
        return round(max(RMS_FACTOR.value, 1 + RMS_LUCK.value / math.sqrt(self.bearing)), 2)


def floor_of(runs: Sequence[Distances], dtype: torch.dtype) -> Floor:
    """The noise floor from eager's errors in `dtype`, of several runs over the same positions.

    The runs differ in how they round: one token at a time, all at once, and anew (`nudge.py`). The largest error
    counts, at each position and of all together: where the runs disagree, the artifact may be as unlucky as any.
    """
    first = runs[0]
    epsilon, smallest = torch.finfo(dtype).eps, torch.finfo(dtype).tiny  # `smallest` only where all logits are 0
    rounding = ROUNDING_RMS.value * epsilon * float(first.reference_rms_P.square().mean().sqrt())
    max_P = (ROUNDING_MAX.value * epsilon * first.reference_max_P).clamp(min=smallest)
    for run in runs:
        max_P = torch.maximum(max_P, torch.maximum(run.max_P, LUCK.value * run.max_P.median()))
    finite_P = torch.stack([run.finite_P for run in runs]).all(0)
    rms, rms_P = max(rounding, smallest, *(run.rms for run in runs)), torch.stack([run.rms_P for run in runs]).amax(0)
    return Floor(rms, rms_P, max_P, _bearing(runs), finite_P)


def _bearing(runs: Sequence[Distances]) -> float:
    """The square of the sum of the positions' squared errors over the sum of their squares."""
    squares_P = torch.stack([run.rms_P.square() for run in runs]).mean(0)
    bearing = float(squares_P.sum().square() / squares_P.square().sum())
    return bearing if bearing >= 1 else float(len(squares_P))  # NaN where no run has an error, or one is not finite


def outside(artifact: Errors, floor: Floor) -> list[int]:
    """Positions where the artifact's largest error is over the limit, or no number."""
    return [int(p) for p in artifact.positions_P[~(artifact.max_P <= MAX_FACTOR.value * floor.max_P)]]


def judge_errors(artifact: Errors, floor: Floor, *, has_top1: bool = True) -> StretchFigures:
    """Hold the artifact's errors against the floor, position by position and together.

    A NaN or infinity fails whatever the ratios say (they are NaN then, and NaN is not within any limit). Another top-1
    token is a disagreement where it differs by more than the limit of the largest difference allows.
    """
    ratio_P = artifact.max_P / floor.max_P
    other_P = (artifact.top1_P != artifact.reference_top1_P) & has_top1 & artifact.finite_P
    tie_P = other_P & (artifact.margin_P <= TIE_FACTOR.value * floor.max_P)
    worst = int(torch.nan_to_num(ratio_P, nan=torch.inf).argmax())
    return StretchFigures(
        positions=len(ratio_P),
        first_position=int(artifact.positions_P.min()),
        last_position=int(artifact.positions_P.max()),
        rms=artifact.rms,
        rms_floor=floor.rms,
        rms_ratio=artifact.rms / floor.rms,
        rms_limit=floor.rms_limit,
        max=float(artifact.max_P.max()),
        max_floor=float(floor.max_P.max()),
        max_ratio=float(ratio_P[worst]),
        max_limit=MAX_FACTOR.value,
        worst_position=int(artifact.positions_P[worst]),
        relative_l2=artifact.relative_l2,
        kl_mean=float(artifact.kl_P.mean()),
        not_finite=artifact.positions_P[~artifact.finite_P].tolist(),
        ties=artifact.positions_P[tie_P].tolist(),
        disagreements=artifact.positions_P[other_P & ~tie_P].tolist(),
    )


def doubtful(found: StretchFigures, artifact: Errors, floor: Floor) -> bool:
    """Whether it fails by so few positions that it may be eager's luck there: a firmer floor must decide."""
    few = len(outside(artifact, floor)) <= max(1, DOUBTFUL * found.positions)
    return few and not found.passed and not found.not_finite


def judge_by(artifact: Errors, floors: Iterable[Floor], *, has_top1: bool = True) -> tuple[StretchFigures, Floor]:
    """The verdict by the first floor, or by a firmer one that follows where that leaves a doubt; and which it was."""
    looks = iter(floors)
    floor = next(looks)
    found = judge_errors(artifact, floor, has_top1=has_top1)
    while doubtful(found, artifact, floor) and (firmer := next(looks, None)) is not None:
        floor, found = firmer, judge_errors(artifact, firmer, has_top1=has_top1)
    return found, floor
