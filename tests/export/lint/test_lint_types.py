"""Arithmetic in too few bits by whatever way its type is given, names that TensorRT mixes up, and no false alarms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.export.lint.lint_support import (
    HIDDEN,
    NEW,
    READ,
    WRITES,
    assert_builds,
    constant,
    function,
    graph_of,
    lint,
    node,
    rules,
    value,
)
from tests.export.tensorrt.trt_support import (
    BATCH,
    HALF,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LENGTH,
    MIXED,
    SLOTS,
    attend,
    build_unchecked,
    cached_attention,
    rtx,
    write_cache,
)

FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
TABLE = np.ones((99, HEAD_DIM // 2))
POSITIONS = value("position_ids", TensorProto.INT64, [BATCH, LENGTH])


def _rope(*tables: onnx.NodeProto, content: np.ndarray[Any, Any] | None = None, x: int = HALF) -> onnx.ModelProto:
    """RotaryEmbedding with tables made by nodes from the initializers a and b; or from graph inputs."""
    made = {name for item in tables for name in item.output}
    inputs = [value("x", x, MIXED), POSITIONS]
    inputs += [value(name, x, list(TABLE.shape)) for name in ("cos", "sin") if name not in made]
    rope = node("RotaryEmbedding", ["x", "cos", "sin", "position_ids"], ["y"], "rope")
    stored = [] if content is None else [numpy_helper.from_array(content, name) for name in ("a", "b")]
    return graph_of([*tables, rope], inputs, [value("y", x, MIXED)], stored)


def _both(op_type: str, **attributes: Any) -> list[onnx.NodeProto]:
    return [node(op_type, [a], [b], **attributes) for a, b in (("a", "cos"), ("b", "sin"))]


def _norm(*squares: onnx.NodeProto, x: int = HALF, wide: bool = False) -> onnx.ModelProto:
    """x / sqrt(mean + eps) after nodes that make `mean`; in float32 from there on where `wide`."""
    element = FLOAT if wide else x
    number = helper.tensor_dtype_to_np_dtype(element)
    nodes = [
        *squares,
        node("Add", ["mean", "eps"], ["shifted"]),
        node("Sqrt", ["shifted"], ["root"]),
        node("Cast", ["x"], ["same"], to=element),
        node("Div", ["same", "root"], ["y"]),
    ]
    stored = [constant("eps", 1e-5, number), constant("axes", [-1]), constant("two", 2, np.float16)]
    return graph_of(nodes, [value("x", x, HIDDEN)], [value("y", element, HIDDEN)], stored)


def _stashed(op_type: str, kind: int, x: int = HALF) -> onnx.ModelProto:
    gain = numpy_helper.from_array(np.ones(HEAD_DIM, helper.tensor_dtype_to_np_dtype(x)), "gain")
    norm = node(op_type, ["x", "gain"], ["y"], axis=-1, stash_type=kind)
    return graph_of([norm], [value("x", x, HIDDEN)], [value("y", x, HIDDEN)], [gain])


MEAN = node("ReduceMean", ["squares", "axes"], ["mean"], "mean", keepdims=1)
TRAPS = {
    "rope-tables cast": _rope(*_both("Cast", to=HALF), content=TABLE.astype(np.float32)),
    "rope-tables of Constant nodes": _rope(
        *(
            node("Constant", [], [name], value=numpy_helper.from_array(TABLE.astype(np.float16)))
            for name in ("cos", "sin")
        )
    ),
    "rope-tables after Identity": _rope(*_both("Identity"), content=TABLE.astype(np.float16)),
    "rope-tables as inputs": _rope(),
    "rope-tables by angles": graph_of(
        [node("Cos", ["x"], ["y"])], [value("x", HALF, HIDDEN)], [value("y", HALF, HIDDEN)]
    ),
    "norm-statistics by Pow": _norm(node("Pow", ["x", "two"], ["squares"]), MEAN),
    "norm-statistics by Mul": _norm(node("Mul", ["x", "x"], ["squares"]), MEAN),
    "norm-statistics after Identity": _norm(
        node("Identity", ["x"], ["again"]),
        node("Mul", ["x", "again"], ["product"]),
        node("Identity", ["product"], ["squares"]),
        MEAN,
    ),
    "norm-statistics by ReduceSumSquare": _norm(node("ReduceSumSquare", ["x", "axes"], ["mean"], keepdims=1)),
    "norm-statistics of a centred x": _norm(
        node("ReduceMean", ["x", "axes"], ["middle"], keepdims=1),
        node("Sub", ["x", "middle"], ["centred"]),
        node("Mul", ["centred", "centred"], ["squares"]),
        MEAN,
    ),
    "norm-statistics widened too late": _norm(
        node("Mul", ["x", "x"], ["product"]), node("Cast", ["product"], ["squares"], to=FLOAT), MEAN, wide=True
    ),
    "norm-statistics bfloat16": _stashed("RMSNormalization", TensorProto.BFLOAT16),
    "norm-statistics LayerNormalization": _stashed("LayerNormalization", HALF),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_too_few_bits_are_found_however_the_type_is_given(trap: str, tmp_path: Path) -> None:
    assert rules(TRAPS[trap]) == {trap.split()[0]}
    assert_builds(TRAPS[trap], tmp_path)


def _attention(*nodes: onnx.NodeProto, inputs: list[onnx.ValueInfoProto], **attributes: Any) -> onnx.ModelProto:
    """Attention of `query` over k and v without any cache."""
    tensors = [constant("zero", [0]), constant("one", [1]), constant("two", [2]), constant("four", [4])]
    outputs = [value("mixed", HALF, MIXED)]
    return graph_of([*nodes, attend("query", "k", "v", **attributes)], inputs, outputs, tensors)


def _fixed(name: str, heads: int) -> onnx.ValueInfoProto:
    return value(name, HALF, [1, heads, 16, HEAD_DIM])


QUERY = value("query", HALF, MIXED)
ENCODED: list[str | int | None] = [BATCH, KV_HEADS, SLOTS, HEAD_DIM]
PIECE: list[str | int | None] = [BATCH, KV_HEADS, LENGTH, HEAD_DIM // 2]
GOOD = {
    "causal attention of a fixed length": _attention(
        inputs=[_fixed("query", HEADS), _fixed("k", KV_HEADS), _fixed("v", KV_HEADS)], is_causal=1
    ),
    "attention to an encoder's output of a fixed length": _attention(
        inputs=[QUERY, value("k", HALF, ENCODED), value("v", HALF, ENCODED)], scale=0.125
    ),
    "keys that are cast": _attention(
        node("Cast", ["key"], ["k"], to=HALF),
        node("Cast", ["value"], ["v"], to=HALF),
        inputs=[QUERY, value("key", FLOAT, NEW), value("value", FLOAT, NEW)],
        is_causal=1,
    ),
    "keys cut out of a packed input": _attention(
        node("Slice", ["packed", "zero", "two", "one"], ["k"]),
        node("Slice", ["packed", "two", "four", "one"], ["v"]),
        inputs=[QUERY, value("packed", HALF, [BATCH, 4, LENGTH, HEAD_DIM])],
        is_causal=1,
    ),
    "keys of two parts": _attention(
        node("Concat", ["turned", "plain"], ["k"], axis=3),
        inputs=[QUERY, value("turned", HALF, PIECE), value("plain", HALF, PIECE), value("v", HALF, NEW)],
        is_causal=1,
    ),
    "an output whose name begins with present": graph_of(
        [node("Cast", ["x"], ["wide"], to=FLOAT), node("Cast", ["wide"], ["presentation"], to=HALF)],
        [value("x", HALF, HIDDEN)],
        [value("presentation", HALF, HIDDEN)],
    ),
    "statistics in double": _stashed("RMSNormalization", DOUBLE, DOUBLE),
    "tables in double": _rope(*_both("Identity"), content=TABLE, x=DOUBLE),
    "a norm widened first": _norm(
        node("Cast", ["x"], ["wide"], to=FLOAT), node("Mul", ["wide", "wide"], ["squares"]), MEAN, wide=True
    ),
    "a mean that is none of squares": _norm(
        node("Abs", ["x"], ["squares"]),
        MEAN,
    ),
    "a product that is no square": _norm(
        node("Abs", ["x"], ["other"]),
        node("Mul", ["x", "other"], ["squares"]),
        MEAN,
    ),
}


@pytest.mark.parametrize("form", GOOD)
def test_a_graph_that_tensorrt_runs_as_written_is_clean(form: str, tmp_path: Path) -> None:
    assert lint(GOOD[form]) == []
    assert_builds(GOOD[form], tmp_path)


def _calls(
    *calls: tuple[str, str], functions: list[onnx.FunctionProto], overloads: tuple[str, ...] = ()
) -> onnx.ModelProto:
    """Functions called one after the other on x."""
    nodes = []
    for index, (domain, name) in enumerate(calls):
        out = "y" if index == len(calls) - 1 else f"t{index}"
        nodes.append(node(name, ["x" if index == 0 else f"t{index - 1}"], [out], domain=domain))
        if overloads:
            nodes[-1].overload = overloads[index]
    shape: list[str | int | None] = [2, 4]
    return graph_of(nodes, [value("x", FLOAT, shape)], [value("y", FLOAT, shape)], functions=functions)


def _single(domain: str, name: str, op_type: str, overload: str = "") -> onnx.FunctionProto:
    made = function(domain, name, ["a"], [node(op_type, ["a"], ["b"])], ["b"])
    made.overload = overload
    return made


MIXED_UP = {
    "the name of an operator": (_calls(("one", "Neg"), functions=[_single("one", "Neg", "Relu")]), ["UNARY"]),
    "one name in two domains": (
        _calls(("one", "F"), ("two", "F"), functions=[_single("one", "F", "Relu"), _single("two", "F", "Neg")]),
        ["ACTIVATION", "ACTIVATION"],
    ),
    "one name in two overloads": (
        _calls(
            ("one", "F"),
            ("one", "F"),
            functions=[_single("one", "F", "Relu", "p"), _single("one", "F", "Neg", "q")],
            overloads=("p", "q"),
        ),
        ["ACTIVATION", "ACTIVATION"],
    ),
}


@pytest.mark.parametrize("trap", MIXED_UP)
def test_local_functions_are_told_apart_by_their_bare_names_alone(trap: str, tmp_path: Path) -> None:
    """Relu is an ACTIVATION and Neg a UNARY: TensorRT runs another function than the one that is called."""
    model, layers = MIXED_UP[trap]
    assert rules(model) == {"function-name"}
    assert_builds(model, tmp_path)
    adapter = rtx()
    network = adapter.network(adapter.builder())
    parser = adapter.trt.OnnxParser(network, adapter.log)
    assert parser.parse_from_file(str(tmp_path / "graph.onnx"))
    assert [network.get_layer(index).type.name for index in range(network.num_layers)] == layers


def test_a_function_of_another_opset_is_looked_through(tmp_path: Path) -> None:
    gain = numpy_helper.from_array(np.ones(HEAD_DIM, np.float16), "gain")
    inner = function("one", "Norm", ["a", "g"], [_stashed("RMSNormalization", HALF).graph.node[0]], ["y"], opset=23)
    inner.node[0].input[:] = ["a", "g"]
    model = graph_of(
        [node("Norm", ["x", "gain"], ["y"], domain="one")],
        [value("x", HALF, HIDDEN)],
        [value("y", HALF, HIDDEN)],
        [gain],
        [inner],
    )
    assert rules(model) == {"norm-statistics"}
    assert_builds(model, tmp_path)


def test_functions_with_names_of_their_own_are_clean(tmp_path: Path) -> None:
    model = _calls(("one", "F"), ("one", "G"), functions=[_single("one", "F", "Relu"), _single("one", "G", "Neg")])
    assert lint(model) == []
    assert_builds(model, tmp_path)


def test_shapes_that_tensorrt_refuses_late(tmp_path: Path) -> None:
    narrow = cached_attention()
    (mask,) = (item for item in narrow.graph.input if item.name == "mask")
    mask.type.tensor_type.shape.dim[3].dim_value = SLOTS // 2
    sideways = cached_attention([write_cache("past_key", "key", "present_key", axis=1), WRITES[1], attend(*READ)])
    for name, model, rule in (("narrow", narrow, "attention-form"), ("sideways", sideways, "cache-axis")):
        assert rules(model) == {rule}
        path = tmp_path / f"{name}.onnx"
        onnx.save(model, path)
        engine, error = build_unchecked(path)
        assert engine is None
        assert error
