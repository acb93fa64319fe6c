"""A check of one stretch of positions against the noise floor, and the figures it reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from blockexport.compare.core.check import Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.could_fail import doubts
from blockexport.compare.core.figures import StretchFigures
from blockexport.compare.core.logit_distance import Errors
from blockexport.compare.core.noise import Floor, judge_by
from blockexport.models.wording import listed, number

_OVERFLOWS = "eager PyTorch itself gives NaN or infinity: this precision cannot hold the model, see `precision`"


def judge_stretch(
    context: CheckContext, what: str, artifact: Errors, floors: Iterable[Floor], *, of_cache: bool = False
) -> Outcome:
    """What there is to say of the positions of `artifact`; `what` names them in the messages.

    Args:
        context: of the judgement.
        what: the positions, for people.
        artifact: its errors there.
        floors: eager's own; the first decides, or a firmer one after it where that leaves a doubt.
        of_cache: what is compared are keys or values, and not outputs.
    """
    if not len(artifact.positions_P):
        return Outcome(what, 0)
    found, floor = judge_by(artifact, floors, has_top1=context.has_top1 and not of_cache)
    return Outcome(
        f"{what}: {_praise(found)}",
        len(artifact.positions_P),
        [f"{what}: {'; '.join(said)}"] if (said := _complaints(context, artifact, floor, found)) else (),
        [f"{what}: {said}" for said in _doubts(context, artifact, floor, of_cache)[:1]],
        found,
    )


def _complaints(context: CheckContext, artifact: Errors, floor: Floor, found: StretchFigures) -> list[str]:
    lost = artifact.positions_P[~artifact.finite_P & floor.finite_P].tolist()
    if lost:
        return [f"NaN or infinity, first at position {lost[0]}"]
    if not bool(artifact.reference_rms_P.isfinite().all()):
        return []  # there is nothing to hold it against
    if not floor.finite:
        return [] if context.decoder.dtype is torch.float32 else [_OVERFLOWS]
    complaints = []
    if not found.rms_ratio <= found.rms_limit:
        complaints.append(f"rms error {number(found.rms_ratio, 3)} times eager's, limit {found.rms_limit:g}")
    if not found.max_ratio <= found.max_limit:
        where = f"at position {found.worst_position}"
        complaints.append(f"{where} an error {number(found.max_ratio, 3)} times eager's, limit {found.max_limit:g}")
    if found.disagreements:
        complaints.append(
            f"another top-1 token than the reference's, not tied with it, at {_some(found.disagreements)}"
        )
    return complaints


def _doubts(context: CheckContext, artifact: Errors, floor: Floor, of_cache: bool) -> list[str]:
    if not floor.finite:
        return ["eager PyTorch itself gives NaN or infinity, so there is no floor"]
    return [*doubts(artifact, floor), *([] if of_cache else context.doubts)]


def _praise(found: StretchFigures) -> str:
    ties = f", top-1 tied at {_some(found.ties)}" if found.ties else ""
    return f"within the noise floor (rms {found.rms_ratio:.2f}, largest {found.max_ratio:.2f} times eager's){ties}"


def _some(positions: Sequence[int]) -> str:
    return f"position{'s' if len(positions) > 1 else ''} {listed([str(p) for p in positions])}"


def extended(outcome: Outcome, kind: type[StretchFigures], **more: Any) -> Outcome:
    """The outcome with a check's own record of what it measured; without one where nothing was."""
    if outcome.figures is None:
        return outcome
    return replace(outcome, figures=kind(**asdict(outcome.figures), **more))


def with_not_finite(outcome: Outcome, positions: Sequence[int]) -> Outcome:
    """The outcome with other positions where outputs are NaN or infinite."""
    if not isinstance(outcome.figures, StretchFigures):
        return outcome
    found = sorted({*positions, *outcome.figures.not_finite})
    return replace(outcome, figures=replace(outcome.figures, not_finite=found))
