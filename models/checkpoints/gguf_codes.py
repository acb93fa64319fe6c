"""The kinds of GGUF tensors whose codes a bundle can have as they are: symmetric, in blocks of 32 with a float16 scale.

A value is a code times its block's scale, as in `QuantisedMatrix`. In the file the scale of a block stands before its
codes (`block_q4_0` and `block_q8_0` of https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). Kinds with a
minimum (Q4_1) or with scales of scales (Q4_K, Q6_K) have no such form, and are dequantised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blockexport.models.quantised_matrix import QuantisationScheme

if TYPE_CHECKING:
    import torch

SCHEMES = {"Q4_0": QuantisationScheme(4, 32), "Q8_0": QuantisationScheme(8, 32)}
"""By ggml's name of the kind."""

_SCALE_BYTES = 2


def codes_and_scales(
    raw: npt.NDArray[np.uint8], scheme: QuantisationScheme, outputs: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes int8 [N, K] and scales float16 [N, G] of a matrix.

    Args:
        raw: the tensor's bytes, flat.
        scheme: one of `SCHEMES`.
        outputs: N.
    """
    import torch

    blocks: npt.NDArray[Any] = raw.reshape(-1, _SCALE_BYTES + scheme.code_bytes(scheme.block_size))
    scales = blocks[:, :_SCALE_BYTES].copy().view("<f2").reshape(outputs, -1)
    packed = blocks[:, _SCALE_BYTES:]
    if scheme.bits == 8:
        codes = packed.copy().view(np.int8)
    else:  # codes are stored plus 8; the lower halves of the bytes are the first half of the block
        codes = np.concatenate([packed & 15, packed >> 4], axis=1).view(np.int8)
        codes -= 8
    return torch.from_numpy(codes.reshape(outputs, -1)), torch.from_numpy(scales.astype(np.float16, copy=False))
