"""Whether a value that nothing may move has moved."""

from __future__ import annotations

import torch

from blockexport.compare.core.tolerances import UNCHANGED
from blockexport.models.element_types import BY_NAME


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the last bit; a NaN equals itself, and 0 is not -0."""
    bits = as_integers(a.dtype)
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))


def as_integers(dtype: torch.dtype) -> torch.dtype:
    """The integer type as wide as a floating-point one: torch compares bytes one by one, at a third of the speed."""
    return BY_NAME[f"int{8 * dtype.itemsize}"].torch_dtype


def moved_by(before: torch.Tensor, after: torch.Tensor) -> float:
    """The largest difference in units in the last place of the largest value of `before`.

    What is NaN or infinite in both alike has not moved; infinity or NaN where only one of them is.
    """
    unequal = (before != after) & ~(before.isnan() & after.isnan())
    if not bool(unequal.any()):
        return 0.0
    finite = before[before.isfinite()].double().abs()
    unit = torch.finfo(before.dtype).eps * (float(finite.max()) if finite.numel() else 0.0)
    difference = float((after[unequal].double() - before[unequal].double()).abs().max())
    return difference / max(unit, torch.finfo(before.dtype).tiny)


def has_moved(units: float) -> bool:
    """Whether a difference of `moved_by` is more than a kernel may make of the same numbers."""
    return not units <= UNCHANGED.value  # NaN has moved
