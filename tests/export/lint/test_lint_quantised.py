"""Quantised weights that TensorRT does not take, or takes for others, are found; those of a good graph are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from blockexport.export.lint.lint_finding import Fate
from blockexport.export.lint.lint_graph import examine
from tests.export.tensorrt.trt_support import BATCH, HALF, LENGTH, build_unchecked

WIDTH, OUTPUTS, BLOCK = 64, 10, 32
VALUE = helper.make_tensor_value_info


def _codes(shape: tuple[int, int]) -> onnx.TensorProto:
    raw = np.arange(shape[0] * shape[1], dtype=np.int8).tobytes()
    return helper.make_tensor("codes", TensorProto.INT8, shape, raw, raw=True)


def _product(width: int, zero: int | None = None) -> onnx.ModelProto:
    """A product with `width` inputs in blocks of 32, and a zero point for each."""
    grid = (-(-width // BLOCK), OUTPUTS)
    stored = [_codes((width, OUTPUTS)), numpy_helper.from_array(np.ones(grid, np.float16), "scales")]
    stored += [] if zero is None else [numpy_helper.from_array(np.full(grid, zero, np.int8), "zeros")]
    names = [tensor.name for tensor in stored]
    nodes = [
        helper.make_node("DequantizeLinear", names, ["weight"], "wide", axis=0, block_size=BLOCK),
        helper.make_node("MatMul", ["x", "weight"], ["y"], "product"),
    ]
    x, y = VALUE("x", HALF, [BATCH, LENGTH, width]), VALUE("y", HALF, [BATCH, LENGTH, OUTPUTS])
    return _model(nodes, x, y, stored)


def _turned_over(by: str) -> onnx.ModelProto:
    """A matrix [out, in] in blocks along its inputs, into a Gemm that reads it transposed or through a Transpose."""
    scales = numpy_helper.from_array(np.ones((OUTPUTS, WIDTH // BLOCK), np.float16), "scales")
    nodes = [helper.make_node("DequantizeLinear", ["codes", "scales"], ["wide"], "wide", axis=1, block_size=BLOCK)]
    if by == "Gemm":
        nodes.append(helper.make_node("Gemm", ["x", "wide"], ["y"], "product", transB=1))
    else:
        nodes.append(helper.make_node("Transpose", ["wide"], ["turned"], "turn", perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["x", "turned"], ["y"], "product"))
    x, y = VALUE("x", HALF, [BATCH, WIDTH]), VALUE("y", HALF, [BATCH, OUTPUTS])
    return _model(nodes, x, y, [_codes((OUTPUTS, WIDTH)), scales])


def _lookup() -> onnx.ModelProto:
    """Rows of codes, dequantised after they are looked up."""
    scales = numpy_helper.from_array(np.ones((OUTPUTS, WIDTH // BLOCK), np.float16), "scales")
    nodes = [
        helper.make_node("Gather", ["codes", "ids"], ["rows"], "lookup"),
        helper.make_node("Gather", ["scales", "ids"], ["steps"], "steps"),
        helper.make_node("DequantizeLinear", ["rows", "steps"], ["y"], "wide", axis=2, block_size=BLOCK),
    ]
    ids, y = VALUE("ids", TensorProto.INT64, [BATCH, LENGTH]), VALUE("y", HALF, [BATCH, LENGTH, WIDTH])
    return _model(nodes, ids, y, [_codes((OUTPUTS, WIDTH)), scales])


def _model(
    nodes: list[onnx.NodeProto],
    given: onnx.ValueInfoProto,
    made: onnx.ValueInfoProto,
    stored: list[onnx.TensorProto],
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "quantised", [given], [made], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize(
    ("model", "rule", "fate"),
    [
        (_lookup(), "looked-up-codes", Fate.LOUD),
        (_product(80), "short-block", Fate.LOUD),
        (_product(48), "short-block", Fate.SILENT),
        (_product(64), None, None),
        (_product(20), None, None),
        (_product(64, 3), "zero-point", Fate.LOUD),
        (_product(64, 0), None, None),
        (_turned_over("Gemm"), "unfused-codes", Fate.SILENT),
        (_turned_over("Transpose"), "unfused-codes", Fate.SILENT),
    ],
    ids=[
        "looked up",
        "no whole blocks",
        "blocks of another size",
        "whole blocks",
        "one short block",
        "zero points",
        "zero points of 0",
        "Gemm turns it over",
        "Transpose turns it over",
    ],
)
def test_what_tensorrt_does_with_codes(
    model: onnx.ModelProto, rule: str | None, fate: Fate | None, tmp_path: Path
) -> None:
    found = [(finding.rule, finding.fate) for finding in examine(model).findings]
    assert found == ([] if rule is None else [(rule, fate)])
    path = tmp_path / "graph.onnx"
    onnx.save(model, path)
    engine, _ = build_unchecked(path)
    assert (engine is None) == (fate is Fate.LOUD)


@pytest.mark.parametrize(
    ("shape", "outputs", "attributes"),
    [
        ((WIDTH, OUTPUTS), ["weight"], {"axis": 9, "block_size": BLOCK}),
        ((WIDTH, OUTPUTS), ["weight"], {"axis": -3, "block_size": BLOCK}),
        ((), ["weight"], {"axis": 0, "block_size": BLOCK}),
        ((WIDTH, OUTPUTS), ["weight"], {"axis": 0, "block_size": -500}),
        ((WIDTH, OUTPUTS), [], {"axis": 0, "block_size": BLOCK}),
    ],
    ids=["axis beyond", "axis before", "scalar", "negative block", "no output"],
)
def test_codes_in_a_form_that_onnx_does_not_have(
    shape: tuple[int, ...], outputs: list[str], attributes: dict[str, Any]
) -> None:
    node = helper.make_node("DequantizeLinear", ["codes", "scales"], outputs, "wide", **attributes)
    codes = helper.make_tensor("codes", TensorProto.INT8, shape, bytes(int(np.prod(shape))), raw=True)
    graph = helper.make_graph([node], "odd", [], [], [codes])
    assert examine(helper.make_model(graph)).findings == []


def test_zero_points_whose_bytes_are_too_few_are_not_known_to_be_zero() -> None:
    model = _product(WIDTH, 0)
    next(tensor for tensor in model.graph.initializer if tensor.name == "zeros").raw_data = bytes(3)
    assert [finding.rule for finding in examine(model).findings] == ["zero-point"]
