"""The quantiser: its codes are the nearest, its scales the best that a thorough search finds, its report true."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from blockexport.export.weights import block_quantiser
from blockexport.export.weights.block_quantiser import quantise, quantise_strips
from blockexport.models.errors import UsageError
from blockexport.models.quantised_matrix import QuantisationScheme, QuantisedMatrix


def _values(outputs: int, width: int) -> torch.Tensor:
    return torch.randn(outputs, width, generator=torch.Generator().manual_seed(outputs * width)) * 0.03


def _relative(found_NK: torch.Tensor, wanted_NK: torch.Tensor) -> float:
    return float((found_NK.double() - wanted_NK.double()).norm() / wanted_NK.double().norm())


def _by_maximum(weight_NK: torch.Tensor, block: int) -> torch.Tensor:
    """Rounded to nearest with the largest absolute value at code 7."""
    blocks = weight_NK.reshape(weight_NK.shape[0], -1, block)
    scale = (blocks.abs().amax(-1, keepdim=True) / 7).half().float()
    return ((blocks / scale).round().clamp(-8, 7) * scale).reshape(weight_NK.shape)


def _by_ggml(weight_NK: torch.Tensor, block: int) -> torch.Tensor:
    """llama.cpp's rule for q4_0: the value of largest size, with its sign, at code -8."""
    blocks = weight_NK.reshape(weight_NK.shape[0], -1, block)
    scale = (blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)) / -8).half().float()
    return ((blocks / scale + 8.5).floor().clamp(0, 15) - 8).mul(scale).reshape(weight_NK.shape)


@pytest.mark.parametrize(("block", "most"), [(32, 0.082), (128, 0.0975)])
def test_it_loses_less_than_the_rules_that_look_at_the_maximum(block: int, most: float) -> None:
    weight = _values(256, 512)
    matrix, error = quantise("m", weight, QuantisationScheme(4, block), torch.float16)
    loss = _relative(matrix.dequantised(), weight)
    assert error.relative == pytest.approx(loss, rel=1e-4)
    assert loss < most
    assert loss < 0.96 * _relative(_by_ggml(weight, block), weight)
    assert loss < 0.86 * _relative(_by_maximum(weight, block), weight)


def test_a_thorough_search_of_each_block_finds_hardly_better_scales() -> None:
    weight = _values(7, 64)
    matrix, error = quantise("m", weight, QuantisationScheme(4), torch.float32)
    least = 0.0
    for values in weight.double().reshape(-1, 32).numpy():
        largest = values[np.abs(values).argmax()]
        scales = largest / -np.linspace(4, 12, 4001)[:, None]
        codes = np.clip(np.round(values / scales), -8, 7)
        fitted = (codes * values).sum(1) ** 2 / (codes * codes).sum(1)
        least += (values * values).sum() - fitted.max()
    assert least <= error.lost * (1 + 1e-5)
    assert error.lost < 1.03 * least
    assert _relative(matrix.dequantised(), weight) == pytest.approx((error.lost / error.total) ** 0.5, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 64), (8, 32), (8, 128)])
def test_each_code_is_the_nearest_for_the_scale_that_is_stored(bits: int, block: int, dtype: torch.dtype) -> None:
    weight = _values(11, 3 * block + 5).to(torch.bfloat16)  # with a short block at the end
    matrix, _ = quantise("m", weight, QuantisationScheme(bits, block), dtype)
    assert matrix.scales_GN.dtype == dtype and matrix.scales_GN.shape == (4, 11)
    wanted, codes = weight.double().T.numpy(), matrix.codes_KN.numpy()
    for k in range(codes.shape[0]):
        scale = matrix.scales_GN[k // block].double().numpy()
        steps = np.abs(wanted[k] / scale - codes[k])
        clipped = (codes[k] == matrix.scheme.lowest) | (codes[k] == matrix.scheme.highest)
        assert np.all((steps <= 0.5 + 1e-4) | clipped), k
        assert np.all(steps <= 2.01), k
    assert (matrix.codes_KN == matrix.scheme.lowest).any()  # the whole range is used
    assert _relative(matrix.dequantised(), weight) < (0.12 if bits == 4 else 0.008)


def test_zeros_stay_zeros_and_blocks_do_not_touch_each_other() -> None:
    weight = _values(6, 96)
    weight[2, 32:64] = 0
    weight[4, 64:] *= 1e3
    matrix, _ = quantise("m", weight, QuantisationScheme(4), torch.float16)
    alone, _ = quantise("m", weight[4:5, :32], QuantisationScheme(4), torch.float16)
    assert not matrix.codes_KN[32:64, 2].any() and matrix.scales_GN[1, 2] == 0
    assert torch.equal(matrix.codes_KN[:32, 4:5], alone.codes_KN)
    nothing, error = quantise("m", torch.zeros(3, 40), QuantisationScheme(8), torch.float16)
    assert not nothing.dequantised().any() and error.relative == 0
    assert (nothing.scales_GN == 1).all()


def test_scales_of_eight_bits_are_positive_as_tensorrt_wants_them() -> None:
    weight = _values(40, 96)
    weight[3, :32] = 1e-12  # a scale that float16 does not hold
    in_eight, in_four = (quantise("m", weight, QuantisationScheme(bits), torch.float16)[0] for bits in (8, 4))
    assert (in_eight.scales_GN > 0).all() and (in_four.scales_GN < 0).any()
    assert _relative(in_eight.dequantised(), weight) < 0.006


def test_values_too_small_for_a_scale_become_zeros_and_count_as_lost() -> None:
    matrix, error = quantise("m", torch.full((2, 32), 1e-9), QuantisationScheme(4), torch.float16)
    assert not matrix.dequantised().any() and error.relative == pytest.approx(1)


def test_values_too_large_for_a_scale_are_refused() -> None:
    weight = torch.full((2, 32), 1e7)
    with pytest.raises(UsageError, match=r"m has values too large .* beyond 65504, the end of float16"):
        quantise("m", weight, QuantisationScheme(4), torch.float16)
    matrix, _ = quantise("m", weight, QuantisationScheme(4), torch.bfloat16)
    assert _relative(matrix.dequantised(), weight) < 0.01


def test_tiles_and_strips_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = _values(70, 300)
    scheme = QuantisationScheme(4, 64)
    whole, error = quantise("m", weight, scheme, torch.float16)
    monkeypatch.setattr(block_quantiser, "_TILE", 4 * 64)
    tiled, same = quantise("m", weight, scheme, torch.float16)
    assert _equal(whole, tiled)
    assert same.relative == pytest.approx(error.relative, rel=1e-6)
    strips, same = quantise_strips("m", (70, 300), weight.split(33), scheme, torch.float16)
    assert _equal(whole, strips)
    assert same.relative == pytest.approx(error.relative, rel=1e-6)


def _equal(one: QuantisedMatrix, other: QuantisedMatrix) -> bool:
    return torch.equal(one.codes_KN, other.codes_KN) and torch.equal(one.scales_GN, other.scales_GN)
