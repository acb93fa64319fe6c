"""int4 files of onnxruntime-genai: the graph is judged on the weights it has, and those by their grid."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

from blockexport.cli.main import main
from tests.foreign_files import ForeignExports, build_with_genai, changed, write_source

SHORT = ("-M", "40", "--decode-steps", "6", "--json")
PACKED = "model.layers.1.mlp.down_proj.MatMul.weight_Q4"
SCALES = "model.layers.1.mlp.down_proj.MatMul.weight_scales"


def judged(path: Path, source: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main(["compare", "--onnx", str(path), "--model", str(source), *SHORT, *arguments])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def of(report: dict[str, Any], name: str) -> dict[str, Any]:
    check: dict[str, Any] = next(check for check in report["checks"] if check["name"] == name)
    return check


def edited(name: str, change: Callable[[Any], None]) -> Callable[[onnx.ModelProto], None]:
    def edit(model: onnx.ModelProto) -> None:
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        values = numpy_helper.to_array(tensor).copy()
        change(values)
        tensor.CopyFrom(numpy_helper.from_array(values, name))

    return edit


def flip(values: Any) -> None:
    """The largest step that four bits can make, in one weight."""
    values[5, 1, 3] ^= 8


def widen(values: Any) -> None:
    values.reshape(-1)[7] *= 4


def test_a_right_file_passes(foreign: ForeignExports, capsys: pytest.CaptureFixture[str]) -> None:
    report = judged(foreign.genai("llama", "int4"), foreign.source(), capsys)
    assert {check["verdict"] for check in report["checks"]} == {"pass"}
    assert of(report, "integers")["figures"]["rms_floor"] > 100 * of(report, "decode")["figures"]["rms_floor"]
    assert "15 weights are the checkpoint's within a step of their grid" in of(report, "parameters")["message"]
    assert any("what quantising costs the model is measured apart" in note for note in report["notes"])
    assert any("accuracy_level" in note for note in report["notes"])


@pytest.mark.parametrize(("name", "change"), [(PACKED, flip), (SCALES, widen)])
def test_a_weight_off_its_grid_is_named(
    name: str,
    change: Callable[[Any], None],
    foreign: ForeignExports,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The graph computes the model on the weights it has all the same."""
    path = changed(foreign.genai("llama", "int4"), tmp_path / "odd.onnx", edited(name, change))
    report = judged(path, foreign.source(), capsys, "--check", "parameters", "--check", "prefill", "--no-explain")
    assert of(report, "prefill")["verdict"] == "pass"
    found = of(report, "parameters")
    assert found["verdict"] == "fail"
    assert "model.layers.1.mlp.down_proj.weight differs by more than a step of its grid in " in found["message"]


def test_a_matrix_that_no_tensor_is_called_after_is_not_judged(
    foreign: ForeignExports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rename(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            node.input[:] = ["packed" if name == PACKED else name for name in node.input]
        next(tensor for tensor in model.graph.initializer if tensor.name == PACKED).name = "packed"

    path = changed(foreign.genai("llama", "int4"), tmp_path / "odd.onnx", rename)
    assert main(["compare", "--onnx", str(path), "--model", str(foreign.source())]) == 3
    assert "is no tensor of the checkpoint by its name" in " ".join(capsys.readouterr().err.split())


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint whose head is its embedding, and the file in which both read the same codes."""
    folder = tmp_path_factory.mktemp("tied")
    source = write_source(folder / "source", tied=True)
    return build_with_genai(source, folder / "built", "int4"), source


def test_a_table_that_product_and_lookup_share_is_read_once_for_each(
    tied: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, source = tied
    operators = {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
    assert "GatherBlockQuantized" in operators
    checks = ("--check", "prefill", "--check", "decode", "--check", "parameters")
    report = judged(path, source, capsys, *checks)
    assert {check["verdict"] for check in report["checks"]} == {"pass"}
    assert "16 weights are the checkpoint's within a step of their grid" in of(report, "parameters")["message"]
    odd = changed(path, tmp_path / "odd.onnx", edited("lm_head.MatMul.weight_Q4", flip))
    report = judged(odd, source, capsys, *checks, "--no-explain")
    assert (of(report, "prefill")["verdict"], of(report, "decode")["verdict"]) == ("pass", "pass")
    assert "model.embed_tokens.weight differs by more than a step" in of(report, "parameters")["message"]


def test_codes_that_are_looked_up_otherwise_are_not_judged(
    tied: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def turn(model: onnx.ModelProto) -> None:
        (node,) = (node for node in model.graph.node if node.op_type == "GatherBlockQuantized")
        next(item for item in node.attribute if item.name == "quantize_axis").i = 0

    path = changed(tied[0], tmp_path / "odd.onnx", turn)
    assert main(["compare", "--onnx", str(path), "--model", str(tied[1])]) == 3
    assert "looks up codes in a form that is not known here" in " ".join(capsys.readouterr().err.split())
