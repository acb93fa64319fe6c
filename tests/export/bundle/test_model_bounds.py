"""ONNX files that cannot be followed are refused before anything tries to."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from blockexport.cli.main import main
from blockexport.export.bundle.model_bounds import INLINED_NODES, check_bounds, inlined_nodes
from blockexport.models.errors import UsageError
from tests.support import shared_path

OPSETS = [helper.make_opsetid("", 24), helper.make_opsetid("own", 1)]


def _calling(count: int, calls: int, *, circle: bool = False) -> onnx.ModelProto:
    """`count` local functions, each of which calls the next `calls` times."""
    functions = []
    for i in range(count):
        last = i == count - 1
        callee = "F0" if last and circle else f"F{i + 1}"
        domain = "" if last and not circle else "own"
        names = ["x", *(f"v{k}" for k in range(calls - 1)), "y"]
        nodes = [
            helper.make_node("Neg" if domain == "" else callee, [names[k]], [names[k + 1]], domain=domain)
            for k in range(calls)
        ]
        functions.append(helper.make_function("own", f"F{i}", ["x"], ["y"], nodes, OPSETS))
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("F0", ["x"], ["y"], domain="own")], "g", [value], [result])
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions)


def test_calls_are_counted_as_what_they_stand_for() -> None:
    assert inlined_nodes(_calling(1, 3)) == 1 + 3
    assert inlined_nodes(_calling(3, 2)) == 1 + 2 + 4 + 8
    assert inlined_nodes(_calling(2, 2, circle=True)) < 10


@pytest.mark.parametrize(("count", "calls"), [(40, 2), (3, 100), (2, 10_000)])
def test_functions_that_multiply_are_refused_with_both_numbers(count: int, calls: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(UsageError, match=rf"nodes, and {INLINED_NODES:,} are followed at most") as caught:
        check_bounds(_calling(count, calls), path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 400
    check_bounds(_calling(10, 2), path)


def test_a_chain_of_calls_too_deep_to_follow_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="deeper than can be followed"):
        check_bounds(_calling(5000, 1), tmp_path / "model.onnx")


def _spoiled(place: str) -> bytes:
    """A model with a byte that is no UTF-8 in one of its names."""
    model = _calling(1, 1)
    model.graph.node[0].name = "nodename"
    model.graph.doc_string = "docstring"
    content: bytes = model.SerializeToString()
    assert content.count(place.encode()) >= 1
    return content.replace(place.encode(), b"\xff" + place.encode()[1:])


@pytest.mark.parametrize("place", ["nodename", "docstring", "own", "Neg"])
def test_a_name_that_is_not_utf_8_is_refused_by_lint(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(_spoiled(place))
    assert main(["lint", str(path)]) == 2
    assert "a name that is not UTF-8 (b'\\xff" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [("name-not-utf8.onnx", "not UTF-8"), ("doubling-functions.onnx", "2,199,023,255,551 nodes")],
)
@pytest.mark.parametrize("command", [["lint"], ["compare", "--model", "tiny", "--onnx"]], ids=["lint", "compare"])
def test_the_reported_files(name: str, words: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, str(shared_path("faults") / name)]) == 2
    assert words in capsys.readouterr().err
