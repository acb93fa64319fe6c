"""`blockexport doctor`: what it finds on a working machine, and on broken ones that the tests make."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blockexport.cli import doctor_command
from blockexport.cli.doctor_command import Observation, examine
from blockexport.cli.main import main


def by_name(findings: list[Observation]) -> dict[str, Observation]:
    return {finding.name: finding for finding in findings}


def pretend_versions(monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None]) -> None:
    """Make `importlib.metadata.version` answer otherwise for some distributions; None means not installed."""
    true_version = importlib.metadata.version

    def version(name: str) -> str:
        if name not in changes:
            return true_version(name)
        found = changes[name]
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_a_working_machine_is_found_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "can export a checkpoint and prove the bundle" in out
    assert "TensorScatter runs" in out
    assert importlib.metadata.version("torch") in out


def test_json_is_one_document_with_the_same_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    names = [finding["name"] for finding in report["findings"]]
    assert len(names) == len(set(names))
    assert {"Python", "torch", "onnx", "onnxruntime", "execution providers", "folder", "reflinks"} <= set(names)
    providers = next(f["value"] for f in report["findings"] if f["name"] == "execution providers")
    assert "CPU" in providers


def test_both_onnx_runtime_wheels_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_versions(monkeypatch, {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.0"})
    assert main(["doctor", str(tmp_path), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    finding = next(f for f in report["findings"] if f["name"] == "onnxruntime")
    assert report["ok"] is False
    assert finding["state"] == "bad"
    assert "onnxruntime 1.32.0, onnxruntime-gpu 1.31.0" in finding["value"]
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in finding["remedy"]


def test_no_onnx_runtime_names_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_versions(monkeypatch, {"onnxruntime": None, "onnxruntime-gpu": None})
    finding = by_name(examine(tmp_path))["onnxruntime"]
    assert finding.state == "bad"
    assert finding.remedy == "pip install onnxruntime, or onnxruntime-gpu for CUDA"


def test_a_missing_library_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_versions(monkeypatch, {"gguf": None})
    assert by_name(examine(tmp_path))["gguf"] == Observation("gguf", "not installed", "bad", "pip install gguf")


def test_tensorrt_is_optional(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_versions(monkeypatch, {"tensorrt": None, "tensorrt_rtx": None})
    assert main(["doctor", str(tmp_path)]) == 0
    assert "pip install tensorrt-rtx" in capsys.readouterr().out


def test_a_tensorrt_without_its_libraries_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_import = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name == "tensorrt_rtx":
            raise ImportError("libtensorrt_rtx.so.1: cannot open shared object file")
        return true_import(name, package)

    pretend_versions(monkeypatch, {"tensorrt_rtx": "1.7.1.116"})
    monkeypatch.setattr(importlib, "import_module", import_module)
    finding = by_name(examine(tmp_path))["tensorrt_rtx"]
    assert finding.state == "note"
    assert "1.7.1.116, but does not load: libtensorrt_rtx.so.1" in finding.value


class OldSession:
    def __init__(self, *_: object, **__: object) -> None:
        raise RuntimeError("opset 24 is under development\nand a second line")


class WrongSession:
    def __init__(self, *_: object, **__: object) -> None: ...

    def run(self, *_: object) -> list[np.ndarray[Any, Any]]:
        return [np.zeros((1, 1, 3, 1), np.float32)]


@pytest.mark.parametrize(
    ("session", "value"),
    [(OldSession, "refused: opset 24 is under development"), (WrongSession, "TensorScatter gave [0.0, 0.0, 0.0]")],
)
def test_an_onnx_runtime_without_the_operators_is_bad(session: type, value: str) -> None:
    runtime = SimpleNamespace(SessionOptions=SimpleNamespace, InferenceSession=session)
    finding = doctor_command._dialect(runtime)
    assert (finding.state, finding.value) == ("bad", value)


def test_a_check_that_breaks_is_a_finding_and_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise ImportError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(doctor_command, "_gpu", broken)
    finding = by_name(examine(tmp_path))["GPU"]
    assert finding.state == "bad"
    assert "libcudart.so.13" in finding.value


def test_a_folder_that_does_not_exist_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path / "absent")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_the_reflink_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    doctor_command.supports_reflinks(tmp_path)
    assert list(tmp_path.iterdir()) == []
