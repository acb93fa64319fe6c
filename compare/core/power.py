"""Could a comparison have failed? One that nothing could fail says nothing, and what it calls a pass is none.

The measure is an artifact that has lost half of what the reference says: half of how its outputs vary, at a position or
from position to position. Where that would be within the limits, nothing is judged.
"""

from __future__ import annotations

import torch

from blockexport.compare.core.logit_distance import Errors
from blockexport.compare.core.tolerances import SIGNAL

SPREAD_LEFT = 0.5  # of the reference's spread: outputs that vary less have vanished


def spread_of(spread_P: torch.Tensor) -> float:
    """The standard deviation of the outputs at a position, over all positions together."""
    return float(spread_P.square().mean().sqrt())


def doubts(errors: Errors, allowed: float) -> list[str]:
    """Why it says nothing that errors of a root mean square up to `allowed` were found; empty where it does.

    Args:
        errors: of the artifact; only what they hold of the reference counts.
        allowed: the largest error that would have passed.
    """
    if not len(errors.positions_P):
        return ["no position was compared"]
    if not bool(errors.reference_rms_P.isfinite().all()):
        return ["the float64 reference itself is NaN or infinite"]
    return lost_in("among the outputs of a position", spread_of(errors.reference_spread_P), allowed)


def lost_in(where: str, spread: float, allowed: float) -> list[str]:
    """Whether half of a spread of the reference's outputs (a standard deviation) is lost in errors up to `allowed`."""
    if not spread > 0:
        return [f"the reference's outputs are all the same {where}: there is nothing to tell apart"]
    if allowed < SIGNAL.value * spread:
        return []
    return [
        f"an error of {allowed:.2g} would pass, and the reference's outputs vary by no more than {spread:.2g} {where}: "
        "what is compared is noise"
    ]


def spread_over_positions(outputs_PV: torch.Tensor) -> float | None:
    """Standard deviation of outputs [P, V] from position to position; None of a single one."""
    if len(outputs_PV) < 2:
        return None
    return float(outputs_PV.double().var(0).mean().sqrt())
