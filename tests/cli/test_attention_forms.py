"""`--attention both`: two graphs over the same weights, each judged like any file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from blockexport.cli.main import main
from blockexport.export import onnx_export
from blockexport.export.bundle.manifest import read_manifest
from blockexport.export.bundle.own_verdict import why_bad
from blockexport.export.graph.unmasked import take_masks_out
from tests.small_models import small_config, small_weights, write_folder

CONFIG = small_config("llama", num_hidden_layers=2, max_position_embeddings=40)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_folder(tmp_path / "source", CONFIG, small_weights(CONFIG))
    return tmp_path / "source"


def test_both_forms_are_judged_and_stay_together(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, other = tmp_path / "bundle", tmp_path / "other"
    assert main(["onnx", str(source), "-o", str(bundle), "-M", "36", "--attention", "both", "--quiet"]) == 0
    reports = [json.loads((bundle / place / "report.json").read_text()) for place in ("parity", "parity/nonpad")]
    assert [report["artifact"]["backend"] for report in reports] == ["onnxruntime", "onnxruntime-nonpad"]
    assert [report["verdict"] for report in reports] == ["pass", "pass"]
    assert main(["verify", str(bundle)]) == 0
    assert main(["selftest", str(bundle), "--backend", "onnxruntime-nonpad"]) == 0
    assert main(["redeclare", str(bundle), "-M", "40", "-o", str(other)]) == 0
    assert main(["selftest", str(other), "--backend", "replay-nonpad"]) == 0
    assert main(["verify", str(other)]) == 0
    for name in read_manifest(other).graphs:
        assert ir.load(other / name).graph.inputs[2].shape == ["batch_size", 2, 40, 10]
    capsys.readouterr()
    assert main(["lint", str(bundle), "--for", "onnxruntime-cuda"]) == 1
    assert "model.nonpad.onnx: 1 found, at 2 nodes" in capsys.readouterr().out
    assert main(["lint", str(bundle), "--for", "tensorflow"]) == 2
    assert main(["lint", str(bundle)]) == 0


def test_a_mistake_in_the_second_form_alone_is_named_and_rejects_the_bundle(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = take_masks_out

    def early(model: ir.Model, *rest: Any) -> None:
        """The last slot does not count."""
        taken(model, *rest)
        counted = next(node for node in model.graph if node.name == "filled_slots.all/Add")
        more = ir.node("Sub", [counted.outputs[0], model.graph.initializers["filled_slots.constant_1"]])
        ir.convenience.replace_all_uses_with(counted.outputs[0], more.outputs[0])
        more.replace_input_with(0, counted.outputs[0])
        model.graph.insert_after(counted, more)

    monkeypatch.setattr(onnx_export, "take_masks_out", early)
    assert main(["onnx", str(source), "-o", str(tmp_path / "bundle"), "--attention", "both"]) == 1
    assert "a token does not see its own slot" in capsys.readouterr().out
    rejected = tmp_path / "bundle.rejected"
    reports = [json.loads((rejected / place / "report.json").read_text()) for place in ("parity", "parity/nonpad")]
    assert [report["verdict"] for report in reports] == ["pass", "fail"]
    assert "was judged and found bad" in str(why_bad(rejected, read_manifest(rejected)))


def test_a_form_that_there_is_not(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["onnx", str(source), "-o", str(tmp_path / "bundle"), "--attention", "flash"]) == 2
    assert "no attention 'flash': there are masked, nonpad, both" in capsys.readouterr().err
