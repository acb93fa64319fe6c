"""`blockexport onnx` on an export that comes out bad: the verdict, the explanation, and what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from blockexport.cli.main import main
from blockexport.export import onnx_export
from tests.small_models import small_config, small_weights, write_folder
from tests.zoo_bench import Bench
from tests.zoo_edits_block import gelu

CONFIG = small_config("qwen3")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose export has GELU for SiLU in layer 1."""
    write_folder(tmp_path / "source", CONFIG, small_weights(CONFIG))
    export = onnx_export.export_onnx

    def spoilt(checkpoint: Any, folder: Path, *rest: Any, **options: Any) -> Any:
        manifest = export(checkpoint, folder, *rest, **options)
        bench = Bench(folder, CONFIG, [1])
        gelu("none")(bench)
        bench.graph.sort()
        ir.save(bench.model, folder / "model.onnx")
        return manifest

    monkeypatch.setattr(onnx_export, "export_onnx", spoilt)
    return tmp_path / "source"


def onnx(source: Path, *more: str) -> int:
    return main(["onnx", str(source), "-o", str(source.parent / "bundle"), "-M", "24", *more])


def left(source: Path) -> list[str]:
    return sorted(path.name for path in source.parent.iterdir() if path != source)


def test_a_bad_export_is_explained_after_its_verdict_and_kept(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert onnx(source) == 1
    said = capsys.readouterr()
    places = [said.out.index(words) for words in ("FAIL: ", "prefill", "First difference", "Likely cause")]
    assert places == sorted(places) and said.out.count("FAIL: ") == 1
    assert left(source) == ["bundle.rejected"]
    report = json.loads((source.parent / "bundle.rejected/parity/report.json").read_text())
    assert report["explanation"]["causes"][0]["name"] == "gelu"


def test_no_explain_keeps_it_with_the_verdict_alone(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert onnx(source, "--no-explain", "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert said["report"]["verdict"] == "fail" and said["report"]["explanation"] is None
    assert left(source) == ["bundle.rejected"]


def test_an_interrupted_explanation_leaves_the_verdict_and_no_bundle(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("blockexport.compare.explain.explain.locate", interrupt)
    assert onnx(source, "--quiet") == 130
    said = capsys.readouterr()
    assert said.out.startswith("FAIL: ") and said.out.count("\n") <= 3
    assert "the verdict stands: FAIL. No report was written" in said.err
    assert left(source) == []
