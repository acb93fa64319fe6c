"""Graphs that no checker has seen may lack what an operator cannot do without, or have what it cannot take: no finding
where it says nothing, one message where readers would differ, and no bug of ours."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from blockexport.export.lint.lint_graph import examine
from blockexport.models.errors import UsageError
from tests.export.lint.lint_support import function, graph_of, node, value, with_inputs


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Constant", [], [], value_float=1.0),
        helper.make_node("If", [], ["y"], then_branch=helper.make_graph([], "t", [], [])),
        helper.make_node("If", ["condition"], [], then_branch=helper.make_graph([], "t", [], [])),
        helper.make_node("If", ["condition"], ["y"], then_branch=helper.make_graph([], "t", [], [])),
        helper.make_node("TensorScatter", ["past", "new"], []),
    ],
    ids=[
        "Constant without output",
        "If without condition",
        "If without output",
        "If whose condition has no bytes",
        "TensorScatter without output",
    ],
)
def test_nodes_that_lack_what_they_cannot_do_without(node: onnx.NodeProto) -> None:
    condition = TensorProto(name="condition", data_type=TensorProto.BOOL, dims=[2])  # and its bytes are missing
    assert examine(helper.make_model(helper.make_graph([node], "odd", [], [], [condition]))).findings == []


READ_BY_RULES = [
    node("TensorScatter", ["past_key", "key"], ["y"], axis=2, mode="circular"),
    node("Attention", ["query", "key", "value"], ["y"], scale=0.5, softcap=2.0, is_causal=1, softmax_precision=1),
    node("Attention", ["query", "key", "value"], ["y"], left_window_size=3, right_window_size=2),
    node("RMSNormalization", ["x", "x"], ["y"], stash_type=10),
    node("DequantizeLinear", ["codes", "scales"], ["y"], axis=0, block_size=3),
    node("Gemm", ["x", "x"], ["y"], transB=1),
    node("Constant", [], ["y"], value_ints=[1, 2]),
    node("Constant", [], ["y"], value_float=1.5),
]


def _other_kinds(name: str) -> list[AttributeProto]:
    """An attribute in every form, some of which break a program that puts them into a message or looks them up."""
    empty = helper.make_graph([], "empty", [], [])
    return [
        AttributeProto(name=name, type=AttributeProto.INT, i=7),
        AttributeProto(name=name, type=AttributeProto.FLOAT, f=float("nan")),
        AttributeProto(name=name, type=AttributeProto.STRING, s=b"{x} [/red] }"),
        AttributeProto(name=name, type=AttributeProto.INTS, ints=[1, 2]),
        AttributeProto(name=name, type=AttributeProto.FLOATS),
        AttributeProto(name=name, type=AttributeProto.TENSOR, t=numpy_helper.from_array(np.ones(2, np.float32))),
        AttributeProto(name=name, type=AttributeProto.GRAPH, g=empty),
        AttributeProto(name=name, type=AttributeProto.TYPE_PROTO),
        AttributeProto(name=name),
        AttributeProto(name=name, type=AttributeProto.INT, ref_attr_name="elsewhere"),
    ]


def _with_other_attributes() -> Iterator[tuple[onnx.NodeProto, AttributeProto]]:
    for right in READ_BY_RULES:
        for at, attribute in enumerate(right.attribute):
            for other in _other_kinds(attribute.name):
                if other.type != attribute.type or other.ref_attr_name:
                    wrong = onnx.NodeProto()
                    wrong.CopyFrom(right)
                    wrong.attribute[at].CopyFrom(other)
                    yield wrong, other


def test_attributes_of_another_kind_are_refused_by_name() -> None:
    codes = [TensorProto(name="codes", data_type=TensorProto.INT8, dims=[8, 6])]
    tried = 0
    for wrong, attribute in _with_other_attributes():
        with pytest.raises(UsageError, match=f"the attribute {attribute.name} of {wrong.op_type} .* must be a"):
            examine(with_inputs(graph_of([wrong], [], [], codes), "query", "key", "value", "x"))
        tried += 1
    assert tried > 100


def test_attributes_of_another_kind_in_an_operator_of_another_standard() -> None:
    """What they mean there is not known, and TensorRT's parser is the one that goes by the operator's bare name."""
    for wrong, attribute in _with_other_attributes():
        if not attribute.ref_attr_name:
            wrong.domain = "elsewhere"
            model = with_inputs(graph_of([wrong], [], []), "query", "key", "value", "x")
            assert "foreign-domain" in {finding.rule for finding in examine(model).findings}


def test_an_attribute_of_another_kind_that_comes_into_a_function() -> None:
    inner = node("Elu", ["a"], ["b"])
    inner.attribute.append(AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="slope"))
    local = function("local", "Bent", ["a"], [inner], ["b"])
    local.attribute.append("slope")
    for slope, refused in ((0.5, False), ("steep", True)):
        call = node("Bent", ["x"], ["y"], domain="local", slope=slope)
        model = with_inputs(graph_of([call], [], [value("y", TensorProto.FLOAT16, None)], (), [local]), "x")
        if refused:
            with pytest.raises(UsageError, match=r"the attribute alpha of Elu .* is a text, and must be a fraction"):
                examine(model)
        else:
            assert examine(model).findings == []


@pytest.mark.parametrize(
    "exponent",
    [
        TensorProto(name="two", data_type=TensorProto.UNDEFINED),
        TensorProto(name="two", data_type=99, raw_data=b"ab"),
        TensorProto(name="two", data_type=TensorProto.FLOAT16, raw_data=b"abc"),
        TensorProto(name="two", data_type=TensorProto.FLOAT16, dims=[2**61], raw_data=b"ab"),
        TensorProto(name="two", data_type=TensorProto.STRING),
        TensorProto(name="two", data_type=TensorProto.FLOAT16),
    ],
)
def test_an_exponent_whose_bytes_are_no_number(exponent: TensorProto) -> None:
    squares = [node("Pow", ["x", "two"], ["squares"]), node("ReduceMean", ["squares"], ["y"])]
    assert examine(with_inputs(graph_of(squares, [], [], [exponent]), "x")).findings == []
