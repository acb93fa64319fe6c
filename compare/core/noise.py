"""The verdict on a stretch of positions: the artifact's error against eager's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from blockexport.compare.core.logit_distance import Errors
from blockexport.compare.core.tolerances import (
    LUCK,
    MANY_POSITIONS,
    MAX_FACTOR,
    RMS_FACTOR,
    RMS_FACTOR_FEW,
    RMS_FACTOR_FEWEST,
    ROUNDING_MAX,
    ROUNDING_RMS,
    SOME_POSITIONS,
    TIE_FACTOR,
)


@dataclass(frozen=True)
class Floor:
    """Eager's error on the same positions, never below what rounding the logits costs. `max_P` is float64 [P]."""

    rms: float
    max_P: torch.Tensor
    finite: bool  # False: eager itself overflows in this precision, and nothing can be judged by it


def floor_of(runs: Sequence[Errors], dtype: torch.dtype) -> Floor:
    """The noise floor from eager's errors in `dtype`, of one or more runs over the same positions.

    The runs differ in the order of their sums (one token at a time, or all at once), and the larger error counts: the
    artifact's sums have an order of their own.
    """
    first = runs[0]
    epsilon, smallest = torch.finfo(dtype).eps, torch.finfo(dtype).tiny  # `smallest` only where all logits are 0
    rounding = ROUNDING_RMS.value * epsilon * float(first.reference_rms_P.square().mean().sqrt())
    max_P = (ROUNDING_MAX.value * epsilon * first.reference_max_P).clamp(min=smallest)
    for run in runs:
        max_P = torch.maximum(max_P, torch.maximum(run.max_P, LUCK.value * run.max_P.median()))
    finite = all(bool(run.finite_P.all()) for run in runs)
    return Floor(max(rounding, smallest, *(run.rms for run in runs)), max_P, finite)


@dataclass(frozen=True)
class Judgement:
    """What a comparison with the floor found; the ratios are to be held against `rms_limit` and MAX_FACTOR."""

    rms_ratio: float
    rms_limit: float
    max_ratio: float  # the largest over the positions
    worst: int  # index of that position
    not_finite: list[int]  # positions
    ties: list[int]
    disagreements: list[int]  # top-1 differs and the reference's margin is outside the floor

    @property
    def passed(self) -> bool:
        """Whether everything stayed within the floor."""
        within = self.rms_ratio <= self.rms_limit and self.max_ratio <= MAX_FACTOR.value
        return within and not self.not_finite and not self.disagreements


def rms_limit(positions: int) -> float:
    """How many times eager's rms an artifact's may be over that many positions of a sequence."""
    if positions < SOME_POSITIONS:
        return RMS_FACTOR_FEWEST.value
    return RMS_FACTOR.value if positions >= MANY_POSITIONS else RMS_FACTOR_FEW.value


def judge_errors(artifact: Errors, floor: Floor, *, has_top1: bool = True) -> Judgement:
    """Hold the artifact's errors against the floor, position by position and together.

    A NaN or infinity fails whatever the ratios say (they are NaN then, and NaN is not within any limit).
    """
    ratio_P = artifact.max_P / floor.max_P
    other_P = (artifact.top1_P != artifact.reference_top1_P) & has_top1 & artifact.finite_P
    tie_P = other_P & (artifact.margin_P <= TIE_FACTOR.value * floor.max_P)
    worst = int(torch.nan_to_num(ratio_P, nan=torch.inf).argmax())
    return Judgement(
        rms_ratio=artifact.rms / floor.rms,
        # Rows of a batch have the same positions, and no more of them than the longest: each row has a luck of its own.
        rms_limit=rms_limit(len(artifact.positions_P.unique())),
        max_ratio=float(ratio_P[worst]),
        worst=worst,
        not_finite=artifact.positions_P[~artifact.finite_P].tolist(),
        ties=artifact.positions_P[tie_P].tolist(),
        disagreements=artifact.positions_P[other_P & ~tie_P].tolist(),
    )
