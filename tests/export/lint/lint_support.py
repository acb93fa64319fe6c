"""Small graphs for the tests of lint, and what is asked of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from blockexport.export.lint.lint_finding import LintFinding
from blockexport.export.lint.lint_graph import examine
from tests.export.tensorrt.trt_support import (
    BATCH,
    CACHE,
    HALF,
    HEAD_DIM,
    KV_HEADS,
    LENGTH,
    MIXED,
    SLOTS,
    build_unchecked,
    write_cache,
)

value = helper.make_tensor_value_info
node = helper.make_node
WRITES = (
    write_cache("past_key", "key", "present_key"),
    write_cache("past_value", "value", "present_value"),
)
READ = ("query", "present_key", "present_value", "mask")
NEW: list[str | int | None] = [BATCH, KV_HEADS, LENGTH, HEAD_DIM]
HIDDEN: list[str | int | None] = [BATCH, LENGTH, HEAD_DIM]
INPUTS = {
    "query": value("query", HALF, MIXED),
    "key": value("key", HALF, NEW),
    "value": value("value", HALF, NEW),
    "start": value("start", TensorProto.INT64, [BATCH]),
    "count": value("count", TensorProto.INT64, [BATCH]),
    "mask": value("mask", TensorProto.BOOL, [BATCH, 1, LENGTH, SLOTS]),
    "past_key": value("past_key", HALF, CACHE),
    "past_value": value("past_value", HALF, CACHE),
    "x": value("x", HALF, HIDDEN),
    "condition": value("condition", TensorProto.BOOL, []),
    "trips": value("trips", TensorProto.INT64, []),
}


def constant(name: str, content: Any, dtype: Any = np.int64) -> onnx.TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.asarray(content, dtype), name)


def with_inputs(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """The model with graph inputs that only a body or a function reads."""
    have = {item.name for item in model.graph.input}
    model.graph.input.extend(INPUTS[name] for name in dict.fromkeys(names) if name not in have)
    return model


def graph_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    opset: int = 24,
) -> onnx.ModelProto:
    """A model of any nodes."""
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    domains = {function.domain for function in functions} - {""}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11, functions=list(functions))


def function(
    domain: str,
    name: str,
    inputs: Sequence[str],
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    opset: int = 24,
) -> onnx.FunctionProto:
    """A local function."""
    return helper.make_function(
        domain, name, list(inputs), list(outputs), list(nodes), [helper.make_opsetid("", opset)]
    )


def lint(model: onnx.ModelProto) -> list[LintFinding]:
    """The findings on a graph."""
    return examine(model).findings


def rules(model: onnx.ModelProto) -> set[str]:
    """The rules that a graph breaks."""
    return {finding.rule for finding in lint(model)}


def found(model: onnx.ModelProto, rule: str) -> LintFinding:
    """The one finding of a rule."""
    (finding,) = (finding for finding in lint(model) if finding.rule == rule)
    return finding


def assert_builds(model: onnx.ModelProto, folder: Path) -> None:
    """The graph is valid ONNX, and TensorRT by itself builds an engine of it without a word."""
    onnx.checker.check_model(model)
    path = folder / "graph.onnx"
    onnx.save(model, path)
    engine, error = build_unchecked(path)
    assert (engine is not None, error) == (True, "")
