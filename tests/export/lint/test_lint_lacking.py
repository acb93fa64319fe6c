"""Graphs that no checker has seen may lack what an operator cannot do without: no finding, and no bug of ours."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from blockexport.export.lint.lint_graph import examine


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Constant", [], [], value_float=1.0),
        helper.make_node("If", [], ["y"], then_branch=helper.make_graph([], "t", [], [])),
        helper.make_node("If", ["condition"], [], then_branch=helper.make_graph([], "t", [], [])),
        helper.make_node("If", ["condition"], ["y"], then_branch=helper.make_graph([], "t", [], [])),
    ],
    ids=["Constant without output", "If without condition", "If without output", "If whose condition has no bytes"],
)
def test_nodes_that_lack_what_they_cannot_do_without(node: onnx.NodeProto) -> None:
    condition = TensorProto(name="condition", data_type=TensorProto.BOOL, dims=[2])  # and its bytes are missing
    assert examine(helper.make_model(helper.make_graph([node], "odd", [], [], [condition]))).findings == []
