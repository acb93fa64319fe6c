"""What an export should write for a tensor of the checkpoint, worked out with numpy alone.

The exporter converts with torch (`models/checkpoints/weight_values.py`). This file shares no code with it, so that a
defect there cannot pass both. Rounding is to nearest, ties to even, as IEEE 754 and every converter of weights have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from blockexport.models.checkpoints.checkpoint import Checkpoint

PIECE = 1 << 22  # elements converted at a time: beside the checkpoint's tensor no second one is in memory
Bits = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


def expected_pieces(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """The values of the checkpoint's tensor `name` as an export in `dtype` holds them: flat pieces, in order."""
    for piece in checkpoint.read(name).reshape(-1).split(PIECE):
        yield torch.from_numpy(_signed(rounded_bits(piece, dtype))).view(dtype)


def rounded_bits(values: torch.Tensor, dtype: torch.dtype) -> Bits:
    """The bit patterns of finite `values`, flat, in float32, float16 or bfloat16."""
    if values.dtype == dtype:
        return _bits(values)
    wide = _as_float32(values)
    if dtype == torch.float32:
        return wide.view(np.uint32)
    if dtype == torch.float16:
        with np.errstate(over="ignore"):  # what overflows becomes infinite, as in any converter, and is refused earlier
            return wide.astype(np.float16).view(np.uint16)
    assert dtype == torch.bfloat16, f"no export is in {dtype}"
    # bfloat16 is the upper half of a float32. Half of the last bit that stays, less one, and that bit itself: a carry
    # into it happens above one half, and at one half only where it is odd.
    pattern = wide.view(np.uint32)
    last = (pattern >> np.uint32(16)) & np.uint32(1)
    return ((pattern + np.uint32(0x7FFF) + last) >> np.uint32(16)).astype(np.uint16)


def _as_float32(values: torch.Tensor) -> npt.NDArray[np.float32]:
    """The values widened, which is exact; float64 is rounded once, here."""
    if values.dtype == torch.bfloat16:
        return (_bits(values).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.contiguous().numpy().astype(np.float32)


def _bits(values: torch.Tensor) -> Bits:
    if values.dtype.itemsize == 2:
        return values.contiguous().view(torch.int16).numpy().view(np.uint16)
    return values.contiguous().view(torch.int32).numpy().view(np.uint32)


def _signed(bits: Bits) -> npt.NDArray[Any]:
    return bits.view(np.int16 if bits.dtype == np.uint16 else np.int32)
