"""A check of one stretch of positions against the noise floor, and the figures it reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockexport.compare.core.check import CheckResult, Verdict
from blockexport.compare.core.logit_distance import Errors
from blockexport.compare.core.noise import Floor, Judgement, judge_errors
from blockexport.compare.core.tolerances import MAX_FACTOR


def judge_stretch(name: str, what: str, artifact: Errors, floor: Floor, *, has_top1: bool) -> CheckResult:
    """The result of the check `name` on the positions of `artifact`; `what` names them in the message."""
    found = judge_errors(artifact, floor, has_top1=has_top1)
    figures = _figures(artifact, floor, found)
    if found.not_finite:
        message = f"{what}: NaN or infinity, first at position {found.not_finite[0]}"
        return CheckResult(name, Verdict.FAIL, message, figures)
    if not floor.finite:
        message = f"{what}: eager PyTorch itself gives NaN or infinity in this precision, so there is no floor"
        return CheckResult(name, Verdict.NOT_JUDGED, message, figures)
    message = f"{what}: " + "; ".join(_complaints(artifact, found) or [_praise(found)])
    return CheckResult(name, Verdict.PASS if found.passed else Verdict.FAIL, message, figures)


def _complaints(artifact: Errors, found: Judgement) -> list[str]:
    complaints = []
    if found.rms_ratio > found.rms_limit:
        complaints.append(f"rms error {found.rms_ratio:.3g} times eager's, limit {found.rms_limit:g}")
    if found.max_ratio > MAX_FACTOR.value:
        position = int(artifact.positions_P[found.worst])
        complaints.append(
            f"at position {position} an error {found.max_ratio:.3g} times eager's, limit {MAX_FACTOR.value:g}"
        )
    if found.disagreements:
        complaints.append(
            f"another top-1 token than the reference's at {_some(found.disagreements)}, by more than the floor"
        )
    return complaints


def _praise(found: Judgement) -> str:
    ties = f", top-1 tied at {_some(found.ties)}" if found.ties else ""
    return f"within the noise floor (rms {found.rms_ratio:.2f}, largest {found.max_ratio:.2f} times eager's){ties}"


def _some(positions: Sequence[int]) -> str:
    shown = ", ".join(str(p) for p in positions[:3])
    more = f" and {len(positions) - 3} more" if len(positions) > 3 else ""
    return f"position{'s' if len(positions) > 1 else ''} {shown}{more}"


def _figures(artifact: Errors, floor: Floor, found: Judgement) -> dict[str, Any]:
    return {
        "positions": len(artifact.positions_P),
        "first_position": int(artifact.positions_P.min()),
        "last_position": int(artifact.positions_P.max()),
        "rms": artifact.rms,
        "rms_floor": floor.rms,
        "rms_ratio": found.rms_ratio,
        "rms_limit": found.rms_limit,
        "max": float(artifact.max_P.max()),
        "max_floor": float(floor.max_P.max()),
        "max_ratio": found.max_ratio,
        "max_limit": MAX_FACTOR.value,
        "worst_position": int(artifact.positions_P[found.worst]),
        "relative_l2": artifact.relative_l2,
        "kl_mean": float(artifact.kl_P.mean()),
        "not_finite": found.not_finite,
        "ties": found.ties,
        "disagreements": found.disagreements,
    }
