"""The values of weights: all finite, and what a conversion to a narrower type does to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.wording import listed


@dataclass(frozen=True)
class TensorLoss:
    """What a conversion did to one tensor's values. Sizes are absolute; everything is 0 where nothing was lost."""

    name: str
    overflowed: int = 0  # finite before, infinite after
    largest: float = 0.0  # the largest value before the conversion
    flushed: int = 0  # not zero before, zero after
    largest_flushed: float = 0.0


def check_finite(name: str, tensor: torch.Tensor) -> None:
    """Refuse NaN and infinities; one pass over the values.

    Raises:
        UsageError: naming the tensor, how many values are not finite, and the first.
    """
    if is_finite(tensor):
        return
    bad = ~tensor.isfinite()
    first = torch.nonzero(bad)[0].tolist()
    value = tensor[tuple(first)].item()
    raise UsageError(
        f"{name} holds {int(bad.sum())} values that are not finite, the first ({value}) at {first}: every output "
        "would be NaN. Download the checkpoint again, or take one that was saved without overflow"
    )


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinities."""
    if tensor.numel() == 0:
        return True
    low, high = tensor.aminmax()  # NaN comes through both, an infinity through one
    return bool(low.isfinite() and high.isfinite())


def finite_strips(checkpoint: Checkpoint, name: str) -> Iterator[torch.Tensor]:
    """What `Checkpoint.strips` gives, refused as a whole where a value is not finite.

    Raises:
        UsageError: as `check_finite` does; the file is damaged.
    """
    for strip in checkpoint.strips(name):
        if not is_finite(strip):
            check_finite(name, checkpoint.read(name))
        yield strip


def convert(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, TensorLoss]:
    """`tensor` in `dtype`, after checking that all of it is finite, and what was lost on the way.

    Args:
        name: for messages.
        tensor: any shape.
        dtype: the target; converting to a wider type loses nothing.

    Raises:
        UsageError: `tensor` holds values that are not finite.
    """
    check_finite(name, tensor)
    return narrow(name, tensor, dtype)


def narrow(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, TensorLoss]:
    """A finite `tensor` rounded to nearest even in `dtype`, and what was lost on the way."""
    converted = tensor.to(dtype)
    if torch.promote_types(tensor.dtype, dtype) == dtype or tensor.numel() == 0:
        return converted, TensorLoss(name)
    extremes = torch.stack(tensor.aminmax())
    overflowed = 0
    if not extremes.to(dtype).isfinite().all():
        overflowed = int((~converted.isfinite()).sum())
    flushed, largest_flushed = 0, 0.0
    if torch.count_nonzero(converted) < torch.count_nonzero(tensor):
        gone = tensor[(converted == 0) & (tensor != 0)]
        flushed, largest_flushed = gone.numel(), gone.abs().max().item()
    return converted, TensorLoss(name, overflowed, extremes.abs().max().item(), flushed, largest_flushed)


def combined_loss(name: str, parts: Sequence[TensorLoss]) -> TensorLoss:
    """The loss of a tensor that was converted in `parts`."""
    return TensorLoss(
        name,
        sum(part.overflowed for part in parts),
        max((part.largest for part in parts), default=0.0),
        sum(part.flushed for part in parts),
        max((part.largest_flushed for part in parts), default=0.0),
    )


def check_no_overflow(losses: Sequence[TensorLoss], dtype: torch.dtype) -> None:
    """Refuse a conversion that made infinities.

    Raises:
        UsageError: naming the worst tensors, the largest value and the type's limit.
    """
    lost = sorted((loss for loss in losses if loss.overflowed), key=lambda loss: -loss.largest)
    if not lost:
        return
    limit = torch.finfo(dtype).max
    shown = listed([f"{loss.name} ({loss.overflowed} values, up to {loss.largest:.6g})" for loss in lost])
    raise UsageError(
        f"{str(dtype).removeprefix('torch.')} ends at {limit:.6g}, and these weights would become infinite: "
        f"{shown}. {_wider(dtype, lost[0].largest)}"
    )


def _wider(dtype: torch.dtype, largest: float) -> str:
    """Which precision would hold `largest`; a checkpoint in float64 may have values that none holds."""
    if largest > torch.finfo(torch.float32).max:
        return "No precision of a bundle reaches that far: the checkpoint is damaged, or its weights need rescaling"
    return "Use --fp32 or --bf16" if dtype == torch.float16 else "Use --fp32"
