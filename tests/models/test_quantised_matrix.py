"""The record of a quantised matrix: what its codes stand for, and the bytes that ONNX has of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from blockexport.models import quantised_matrix
from blockexport.models.quantised_matrix import QuantisationScheme, QuantisedMatrix, unpacked

K, N = 71, 5  # an odd number of codes, and a last block of 7 inputs


def _matrix(
    bits: int, dtype: torch.dtype = torch.float32, *, zero: bool = False, order: bool = False
) -> QuantisedMatrix:
    generator = torch.Generator().manual_seed(bits)
    scheme = QuantisationScheme(bits, 32)
    codes = torch.randint(scheme.lowest, scheme.highest + 1, (K, N), generator=generator).to(torch.int8)
    codes[0, :2] = torch.tensor([scheme.lowest, scheme.highest])
    scales = torch.randn(scheme.blocks(K), N, generator=generator).to(dtype)
    zeros = torch.randint(-3, 4, scales.shape, generator=generator).to(torch.int8) if zero else None
    return QuantisedMatrix("m", scheme, codes, scales, zeros, torch.randperm(K, generator=generator) if order else None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_values_are_what_each_code_stands_for(bits: int, zero: bool, dtype: torch.dtype) -> None:
    matrix = _matrix(bits, dtype, zero=zero)
    found = matrix.dequantised()
    assert found.shape == (N, K) == matrix.shape and found.dtype == torch.float32 and found.is_contiguous()
    for k in range(K):
        for n in range(N):
            code = int(matrix.codes_KN[k, n])
            if matrix.zero_points_GN is not None:
                code -= int(matrix.zero_points_GN[k // 32, n])
            assert found[n, k] == torch.tensor(code * float(matrix.scales_GN[k // 32, n])).float(), (n, k)


def test_inputs_come_back_in_the_layers_order() -> None:
    matrix = _matrix(4, order=True)
    assert matrix.order_K is not None
    plain = QuantisedMatrix("m", matrix.scheme, matrix.codes_KN, matrix.scales_GN).dequantised()
    x_K = torch.randn(K, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = plain.double() @ x_K[matrix.order_K]
    torch.testing.assert_close(matrix.dequantised().double() @ x_K, wanted, rtol=1e-12, atol=1e-12)
    assert not torch.equal(matrix.dequantised(), plain)


def _raw(pieces: Iterator[torch.Tensor]) -> bytes:
    return torch.cat(list(pieces)).numpy().tobytes()


@pytest.mark.parametrize("piece", [1 << 22, 12])
@pytest.mark.parametrize("bits", [4, 8])
def test_packed_codes_are_read_by_onnx(bits: int, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised_matrix, "_PIECE", piece)
    matrix = _matrix(bits)
    assert (len(list(matrix.packed())) > 1) == (piece == 12)
    raw = _raw(matrix.packed())
    assert len(raw) == matrix.scheme.code_bytes(K * N)
    turned = QuantisedMatrix("m", matrix.scheme, matrix.codes_KN.T.contiguous(), torch.ones(1, K))
    assert _raw(turned.packed(outputs_first=True)) == raw
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    assert torch.equal(unpacked(flat, bits, K * N).view(K, N), matrix.codes_KN)
    tensor = helper.make_tensor("codes", matrix.scheme.onnx, (K, N), raw, raw=True)
    assert np.array_equal(numpy_helper.to_array(tensor).astype(np.int8), matrix.codes_KN.numpy())
    node = helper.make_node("DequantizeLinear", ["codes", "scales"], ["y"], axis=0, block_size=32)
    scales = numpy_helper.from_array(matrix.scales_GN.numpy(), "scales")
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (K, N))
    model = helper.make_model(
        helper.make_graph([node], "g", [], [out], [tensor, scales]), opset_imports=[helper.make_opsetid("", 24)]
    )
    onnx.checker.check_model(model)
    (read,) = ReferenceEvaluator(model).run(None, {})
    assert np.array_equal(np.asarray(read).T, matrix.dequantised().numpy())


@pytest.mark.parametrize(
    ("bits", "block_size", "said"),
    [(3, 32, "bits 3 .* choose 4 or 8"), (4, 16, "block size 16 .* 32, 64 or 128"), (True, 32, "bits True")],
)
def test_an_unknown_scheme_is_refused(bits: int, block_size: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        QuantisationScheme(bits, block_size)


def test_a_scheme_knows_its_range_and_sizes() -> None:
    four, eight = QuantisationScheme(4, 64), QuantisationScheme(8)
    assert (four.lowest, four.highest, eight.lowest, eight.highest) == (-8, 7, -128, 127)
    assert (four.blocks(64), four.blocks(65), four.code_bytes(7), eight.code_bytes(7)) == (1, 2, 4, 7)
