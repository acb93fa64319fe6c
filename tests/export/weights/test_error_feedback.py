"""Quantising for what enters a matrix: products come out better, and the codes stay beside those of the values."""

from __future__ import annotations

import pytest
import torch

from blockexport.compare.audits.code_rules import nearest_or_beside
from blockexport.compare.audits.coded_matrix import CodedMatrix
from blockexport.export.weights.block_quantiser import quantise
from blockexport.export.weights.error_feedback import LEAST_REACH, MOST_REACH, quantise_with_feedback
from blockexport.models.errors import UsageError
from blockexport.models.quantised_matrix import QuantisationScheme, QuantisedMatrix

SCHEME = QuantisationScheme(4, 32)
OUTPUTS, WIDTH = 24, 3 * 32 + 7  # with a short block


def _weight() -> torch.Tensor:
    return torch.randn(OUTPUTS, WIDTH, generator=torch.Generator().manual_seed(1)) * 0.03


def _inputs() -> torch.Tensor:
    """900 inputs of few causes, some of them large, as activations are."""
    generator = torch.Generator().manual_seed(2)
    mixing = torch.randn(20, WIDTH, generator=generator)
    mixing[:, ::17] *= 20
    return torch.randn(900, 20, generator=generator) @ mixing + 0.3 * torch.randn(900, WIDTH, generator=generator)


def _products(x_TK: torch.Tensor) -> torch.Tensor:
    return x_TK.T @ x_TK / len(x_TK)


def _lost(matrix: QuantisedMatrix, x_TK: torch.Tensor) -> float:
    wanted = x_TK @ _weight().T
    return float((x_TK @ matrix.dequantised().T - wanted).norm() / wanted.norm())


def test_products_lose_far_less_also_on_other_inputs_of_the_kind() -> None:
    inputs, weight = _inputs(), _weight()
    plain, less = quantise("m", weight, SCHEME, torch.float16)
    found, more = quantise_with_feedback("m", weight, _products(inputs[:600]), SCHEME, torch.float16)
    assert _lost(found, inputs[600:]) < 0.4 * _lost(plain, inputs[600:])
    assert more.relative > less.relative  # what is lost is values
    loss = float((found.dequantised() - weight).norm() / weight.norm())
    assert more.relative == pytest.approx(loss, rel=1e-4)


def test_inputs_that_have_nothing_in_common_give_the_nearest_codes() -> None:
    weight = _weight()
    plain, _ = quantise("m", weight, SCHEME, torch.float16)
    found, _ = quantise_with_feedback("m", weight, torch.eye(WIDTH), SCHEME, torch.float16)
    assert torch.equal(found.codes_KN, plain.codes_KN) and torch.equal(found.scales_GN, plain.scales_GN)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_codes_are_nearest_or_beside_and_scales_within_reach(dtype: torch.dtype) -> None:
    weight = _weight().to(torch.bfloat16)
    found, _ = quantise_with_feedback("m", weight, _products(_inputs()), SCHEME, dtype)
    wanted = weight.double().T
    beside = 0
    for k in range(WIDTH):
        rows = slice(k // 32 * 32, k // 32 * 32 + 32)
        scale = found.scales_GN[k // 32].double()
        off = ((wanted[k] / scale).clamp(-8, 7) - found.codes_KN[k]).abs()
        assert (off <= 1.5 + 1e-4).all()
        beside += int((off > 0.5 + 1e-4).sum())
        reach = wanted[rows].abs().amax(0) / scale.abs()
        assert (reach > LEAST_REACH * 0.995).all() and (reach < MOST_REACH * 1.005).all()
    assert beside > 0.05 * weight.numel()
    assert found.codes_KN.min() == -8 and found.codes_KN.max() == 7


def test_zeros_stay_zeros_and_inputs_that_are_always_zero_do_no_harm() -> None:
    weight, inputs = _weight(), _inputs()
    weight[5, 32:64] = 0
    inputs[:, 40:50] = 0
    found, _ = quantise_with_feedback("m", weight, _products(inputs), SCHEME, torch.float16)
    assert not found.dequantised()[5, 32:64].any()
    assert found.dequantised().isfinite().all()
    silent, _ = quantise_with_feedback("m", weight, torch.zeros(WIDTH, WIDTH), SCHEME, torch.float16)
    assert torch.equal(silent.codes_KN, quantise("m", weight, SCHEME, torch.float16)[0].codes_KN)


@pytest.mark.parametrize("seed", range(12))
def test_no_matrix_of_any_kind_is_taken_for_a_wrong_one(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs, width, many = (int(n) for n in torch.randint(1, 200, (3,), generator=generator))
    weight = torch.randn(outputs, width, generator=generator) * 10.0 ** -(seed % 7)
    if seed % 3 == 0:  # mostly zeros, and a few large ones
        weight = weight**3 * (torch.rand(outputs, width, generator=generator) < 0.2)
    inputs = torch.randn(many, width, generator=generator)
    inputs[:, ::5] *= 10.0 ** (seed % 4)
    scheme = QuantisationScheme(4, (32, 64, 128)[seed % 3])
    dtype = (torch.float16, torch.bfloat16)[seed % 2]
    found, _ = quantise_with_feedback("m", weight, _products(inputs), scheme, dtype)
    codes, scales = found.codes_KN.T.numpy().copy(), found.scales_GN.T.float().numpy().copy()
    assert nearest_or_beside(CodedMatrix(codes, scales, None, scheme.block_size, (-8, 7)), weight) is None
    codes[0, 0] += 4 if codes[0, 0] < 0 else -4
    assert nearest_or_beside(CodedMatrix(codes, scales, None, scheme.block_size, (-8, 7)), weight) is not None


def test_values_too_large_for_a_scale_are_refused() -> None:
    with pytest.raises(UsageError, match=r"m has values too large .* the end of float16"):
        quantise_with_feedback("m", torch.full((2, 32), 1e7), torch.eye(32), SCHEME, torch.float16)
