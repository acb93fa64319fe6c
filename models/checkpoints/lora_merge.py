"""The arithmetic of merging a LoRA adapter into a matrix, a strip of rows at a time.

    W + s B A                                       LoRA, https://arxiv.org/abs/2106.09685, equation 3
    m (W + s B A) / ||W + s B A||, norm by output   DoRA, https://arxiv.org/abs/2402.09353, equation 5

An embedding [V, D] is the transpose of a linear layer's matrix, with a norm for each of its columns. Everything is
computed in float64, whatever types base model and adapter are stored in, and rounded once by the caller: machines and
numbers of threads then agree to the bit, but for a value in billions that lies beside the middle of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from blockexport.models.checkpoints.adapter_tensors import LowRank
from blockexport.models.checkpoints.checkpoint import TensorEntry
from blockexport.models.checkpoints.fused_tensors import StackedPart
from blockexport.models.checkpoints.mapped_tensor import tensor_of
from blockexport.models.checkpoints.weight_values import check_finite

Strips = Iterator[torch.Tensor]


def merged_strips(before: Callable[[], Strips], low_rank: LowRank, part: StackedPart | None = None) -> Strips:
    """A matrix with its low-rank part, in float64.

    Args:
        before: gives the base model's matrix, strips of rows in order, as often as it is called.
        low_rank: what is added.
        part: of whose outputs; None: of all.

    Raises:
        UsageError: the adapter holds values that are not finite.
    """
    down, up = adapter_values(low_rank.down), adapter_values(low_rank.up, part)
    left_NR, right_RK = (down.T, up.T) if low_rank.turned else (up, down)

    def added() -> Iterator[tuple[slice, torch.Tensor]]:
        done = 0
        for strip in before():
            rows = slice(done, done + len(strip))
            yield rows, torch.addmm(strip.double(), left_NR[rows], right_RK, alpha=low_rank.scaling)
            done = rows.stop

    if low_rank.magnitude is None:
        yield from (sums for _, sums in added())
        return
    magnitude = adapter_values(low_rank.magnitude, part)
    if low_rank.turned:  # a norm takes all rows: one pass for them, one for the values
        squares_D = torch.stack([sums.square().sum(0) for _, sums in added()]).sum(0)
        yield from (sums * (magnitude / squares_D.sqrt()) for _, sums in added())
    else:
        yield from (sums * (magnitude[rows] / sums.square().sum(1).sqrt())[:, None] for rows, sums in added())


def adapter_values(entry: TensorEntry, part: StackedPart | None = None) -> torch.Tensor:
    """A tensor of an adapter in float64, or a part of its outputs, which come first.

    Raises:
        UsageError: it holds values that are not finite, or its file is damaged.
    """
    assert entry.location is not None
    tensor = tensor_of(entry.location, entry.dtype, entry.shape)
    check_finite(f"{entry.stored_name} in {entry.location.path}", tensor)
    return tensor.double() if part is None else part.of_outputs(tensor.double())
