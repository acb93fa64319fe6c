"""Quantise a matrix so that its products, and not its values, come out best: each error is made good by later inputs.

Inputs are taken one by one. What rounding one of them does to the outputs is taken up, as far as the inputs go together
on a text, by the weights of those that are still to be rounded. This is GPTQ (Frantar et al. 2022,
https://arxiv.org/abs/2210.17323) with the scale of a block by least squares, in which each input counts by its mean
square on the text, and with two limits, so that the matrix can still be held against the checkpoint's: a code is the
nearest to the weight's own value or the one beside it, and the largest value of a block is 5 to 12 steps of its grid.
"""

from __future__ import annotations

import torch

from blockexport.export.weights.block_quantiser import (
    QuantisationError,
    best_scale,
    check_range,
    inverse,
    nearest_codes,
    sum_of_squares,
)
from blockexport.models.quantised_matrix import QuantisationScheme, QuantisedMatrix

DAMPING = 0.03  # of the mean square of an input, added to each: what so few tokens say of two inputs is uncertain
BESIDE = 1  # steps that a code may be off the nearest
LEAST_REACH, MOST_REACH = 5.0, 12.0  # steps of the grid of a block to its largest value


@torch.inference_mode()
def quantise_with_feedback(
    name: str,
    weight_NK: torch.Tensor,
    products_KK: torch.Tensor,
    scheme: QuantisationScheme,
    scale_dtype: torch.dtype,
) -> tuple[QuantisedMatrix, QuantisationError]:
    """The matrix `name` quantised for inputs as they are on a text, and what that cost its values.

    Args:
        name: the tensor's, for messages and for the result.
        weight_NK: [N, K] in any floating-point type, all values finite.
        products_KK: mean products of the inputs, float32 [K, K].
        scheme: bits and block size.
        scale_dtype: what the scales are stored in.

    Raises:
        UsageError: a scale is beyond the range of `scale_dtype`.
    """
    wanted_KN = weight_NK.T.float().contiguous()
    left_KN = wanted_KN.clone()  # with what the inputs before have left to make good
    width, outputs = wanted_KN.shape
    codes_KN = torch.empty(width, outputs, dtype=torch.int8)
    scales_GN = torch.empty(scheme.blocks(width), outputs, dtype=scale_dtype)
    damped_KK = _damped(products_KK)
    upper_KK = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped_KK)), upper=True)
    lost = 0.0
    for block, start in enumerate(range(0, width, scheme.block_size)):
        rows = slice(start, min(start + scheme.block_size, width))
        rest = slice(rows.stop, width)
        counts_B1 = damped_KK.diagonal()[rows, None]
        best_N = best_scale(left_KN[None, rows], scheme, counts_B1)[0, 0]
        scales_GN[block] = _within_reach(best_N, wanted_KN[rows]).to(scale_dtype)
        scale_N = scales_GN[block].float()
        codes_BN, errors_BN = _codes(wanted_KN[rows], left_KN[rows], scale_N, upper_KK[rows, rows], scheme)
        left_KN[rest].addmm_(upper_KK[rows, rest].T, errors_BN, alpha=-1)
        codes_KN[rows] = codes_BN.to(torch.int8)
        lost += sum_of_squares(codes_BN * scale_N - wanted_KN[rows])
    check_range(name, scales_GN)
    return QuantisedMatrix(name, scheme, codes_KN, scales_GN), QuantisationError(lost, sum_of_squares(wanted_KN))


def _damped(products_KK: torch.Tensor) -> torch.Tensor:
    damped_KK = products_KK.clone()
    mean = float(damped_KK.diagonal().mean())
    damped_KK.diagonal().add_(DAMPING * mean if mean > 0 else 1.0)
    return damped_KK


def _within_reach(scale_N: torch.Tensor, wanted_BN: torch.Tensor) -> torch.Tensor:
    """The scales, or the nearest ones of their sign that leave the block within its reach: 0 for a block of zeros."""
    largest_N = wanted_BN.abs().amax(0)
    return scale_N.abs().clamp(largest_N / MOST_REACH, largest_N / LEAST_REACH).copysign(scale_N)


def _codes(
    wanted_BN: torch.Tensor,
    left_BN: torch.Tensor,
    scale_N: torch.Tensor,
    upper_BB: torch.Tensor,
    scheme: QuantisationScheme,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of one block, as floats, and the errors that the blocks behind it have to take up; `left_BN` is used up."""
    inverse_N = inverse(scale_N)
    codes_BN, errors_BN = torch.empty_like(left_BN), torch.empty_like(left_BN)
    nearest_BN = nearest_codes(wanted_BN, inverse_N, scheme, torch.empty_like(wanted_BN))
    lowest_BN = (nearest_BN - BESIDE).clamp_(min=scheme.lowest)
    highest_BN = (nearest_BN + BESIDE).clamp_(max=scheme.highest)
    for k, left_N in enumerate(left_BN):
        codes_BN[k] = (left_N * inverse_N).round_().clamp_(lowest_BN[k], highest_BN[k])
        errors_BN[k] = (left_N - codes_BN[k] * scale_N) / upper_BB[k, k]
        left_BN[k + 1 :].addr_(upper_BB[k, k + 1 :], errors_BN[k], alpha=-1)
    return codes_BN, errors_BN
