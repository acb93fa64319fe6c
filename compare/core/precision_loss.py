"""What a precision does to a model: where on the way its numbers are first lost, and in which weights.

Eager PyTorch in the precision and in float64 go through the model side by side, each on its own numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blockexport.compare.core.reference import Reference
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.interface import Ends

LOST = 0.5  # of a value's size: what is off by as much is no longer that value
WEIGHT_LOST = 0.1  # of a tensor's size: rounding costs 0.3 % in bfloat16, and less in float16


@dataclass(frozen=True)
class Loss:
    """The first value that is NaN, infinite or off by half of its size.

    Attributes:
        place: which, for people.
        finite: False where it is NaN or infinite.
        largest: the largest number up to there, in float64.
        dtype: the type of the arithmetic.
    """

    place: str
    finite: bool
    largest: float
    dtype: torch.dtype

    @property
    def sentence(self) -> str:
        """In words."""
        what = "is wrong by half of its size or more" if self.finite else "becomes NaN or infinite"
        end = torch.finfo(self.dtype).max
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.place} {what} (numbers reach {self.largest:.6g} up to there, and {name} ends at {end:.6g})"


@torch.inference_mode()
def first_loss(checkpoint: Checkpoint, dtype: torch.dtype, ids_S: torch.Tensor, ends: Ends) -> Loss | None:
    """Where arithmetic in `dtype` first loses what float64 says of the tokens; None where it does nowhere."""
    own, exact = (Reference(checkpoint, kind, ends=ends).values(ids_S) for kind in (dtype, torch.float64))
    largest = 0.0
    for (place, got), (_, want) in zip(own, exact, strict=True):
        largest = max(largest, float(want.abs().max()))
        finite = bool(got.isfinite().all())
        if not finite or float((got.double() - want).norm()) >= LOST * float(want.norm()) > 0:
            return Loss(place, finite, largest, dtype)
    return None


def lost_weights(checkpoint: Checkpoint, dtype: torch.dtype) -> str | None:
    """The tensor that rounding to `dtype` hurts most, where it costs more than a tenth of it; a clause for people."""
    worst, said = WEIGHT_LOST, None
    for name in checkpoint.entries:
        weight = checkpoint.read(name).double()
        size = float(weight.norm())
        share = float((weight.to(dtype).double() - weight).norm()) / size if size else 0.0
        if share > worst:
            smallest = torch.finfo(dtype).smallest_normal
            worst = share
            said = (
                f"{name} loses {share:.0%} of its size when it is rounded (its largest value is "
                f"{float(weight.abs().max()):.3g}, and below {smallest:.3g} the type has fewer digits or none)"
            )
    return said
