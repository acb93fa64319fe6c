"""Could a comparison have failed? One that nothing could fail says nothing, and what it calls a pass is none.

The measure is an artifact that has lost half of what the reference says: half of how its outputs vary, at a position or
from position to position. Where that would be within the limits, nothing is judged. With a sharp softmax a few
positions may bear all of eager's error; the limit of all together says nothing then, but most of them may have limits
of their own that do.
"""

from __future__ import annotations

import torch

from blockexport.compare.core.logit_distance import Distances
from blockexport.compare.core.noise import Floor
from blockexport.compare.core.tolerances import MAX_FACTOR, SIGNAL

SPREAD_LEFT = 0.5  # of the reference's spread: outputs that vary less have vanished


def spread_of(spread_P: torch.Tensor) -> float:
    """The standard deviation of the outputs at a position, over all positions together."""
    return float(spread_P.square().mean().sqrt())


def doubts(errors: Distances, floor: Floor) -> list[str]:
    """Why it says nothing that errors within the limits of `floor` were found; empty where it does.

    Args:
        errors: of the artifact; only what they hold of the reference counts.
        floor: at the same positions.
    """
    if not len(errors.positions_P):
        return ["no position was compared"]
    if not bool(errors.reference_rms_P.isfinite().all()):
        return ["the float64 reference itself is NaN or infinite"]
    spread_P = errors.reference_spread_P
    mean_P = (errors.reference_rms_P.square() - spread_P.square()).clamp(min=0).sqrt()
    largest_P = torch.maximum(spread_P, errors.reference_max_P - mean_P)
    return lost_in("among the outputs of a position", spread_P, floor, largest_P)


def lost_in(where: str, spread_P: torch.Tensor, floor: Floor, largest_P: torch.Tensor | None = None) -> list[str]:
    """Whether half of a spread of the reference's outputs is lost in errors that pass.

    Args:
        where: they vary so, for people.
        spread_P: their standard deviation at each position, or one for all.
        floor: at those positions. An error that passes is within the limit of all positions together, and within that
            of each; one that more than half of them would notice does not.
        largest_P: how far they are from their mean at most; their standard deviation where it is not known.
    """
    spread, allowed = spread_of(spread_P), floor.rms_limit * floor.rms
    if not spread > 0:
        return [f"the reference's outputs are all the same {where}: there is nothing to tell apart"]
    noticed_P = MAX_FACTOR.value * floor.max_P < SIGNAL.value * (spread_P if largest_P is None else largest_P)
    if allowed < SIGNAL.value * spread or 2 * int(noticed_P.sum()) > len(noticed_P):
        return []
    return [
        f"an error of {allowed:.2g} would pass, and the reference's outputs vary by no more than {spread:.2g} {where}: "
        "what is compared is noise"
    ]


def spread_over_positions(outputs_PV: torch.Tensor) -> torch.Tensor | None:
    """Standard deviation of outputs [P, V] from position to position, a float64 scalar; None of a single one."""
    if len(outputs_PV) < 2:
        return None
    return outputs_PV.double().var(0).mean().sqrt()
