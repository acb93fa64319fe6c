"""`blockexport compare --model CHECKPOINT --onnx FILE`: other tools' files judged, and a wrong theta named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import helper

from blockexport.cli.main import main
from tests.foreign_files import ForeignExports, changed, give_last_logits, with_theta
from tests.output_cuts import CUTS

THETA = 500_000.0  # of the checkpoints that are wrong; the models are made with 10,000
APPLIES = {"prefill", "decode", "spread", "causality", "batch", "greedy"}


@pytest.fixture(scope="module")
def made(foreign: ForeignExports, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`source` as a checkpoint and as exports, and `theta`, the same weights with another theta."""
    folder = tmp_path_factory.mktemp("judged-foreign")
    shutil.copytree(foreign.source(), folder / "source")
    shutil.copytree(foreign.genai().parent, folder / "genai")
    shutil.copy(foreign.growing(), folder / "growing.onnx")
    with_theta(folder / "source", folder / "theta", THETA)
    return folder


def compare(file: Path, model: Path, *arguments: object) -> int:
    return main(["compare", "--model", str(model), "--onnx", str(file), *map(str, arguments)])


def judged(
    file: Path, model: Path, capsys: pytest.CaptureFixture[str], *arguments: object, code: int
) -> tuple[dict[str, str], dict[str, object]]:
    """The verdict of each check that ran, and the report."""
    assert compare(file, model, "--json", *arguments) == code
    report = json.loads(capsys.readouterr().out)
    return {check["name"]: check["verdict"] for check in report["checks"]}, report


def skipped(report: dict[str, object]) -> dict[str, str]:
    entries = report["skipped"]
    assert isinstance(entries, list)
    return {entry["name"]: entry["reason"] for entry in entries}


def causes(report: dict[str, object]) -> list[str]:
    explanation = report["explanation"]
    assert isinstance(explanation, dict)
    assert explanation["located"]["node"] and explanation["note"] == ""
    return [cause["cause"] for cause in explanation["causes"]]


def test_a_file_of_onnxruntime_genai_passes(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdicts, report = judged(made / "genai" / "model.onnx", made / "source", capsys, code=0)
    assert verdicts.keys() >= APPLIES | {"last-slot"} and set(verdicts.values()) == {"pass"}
    assert verdicts["parameters"] == "pass"
    artifact, positions = report["artifact"], report["positions"]
    assert isinstance(artifact, dict) and isinstance(positions, dict)
    assert artifact["convention"].startswith("past and present in one buffer")
    assert positions["position"][-1] == 511 and artifact["max_sequence_length"] == 512


def test_a_file_of_optimums_convention_passes(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdicts, report = judged(made / "growing.onnx", made / "source", capsys, code=0)
    assert verdicts.keys() >= APPLIES and set(verdicts.values()) == {"pass"}
    assert verdicts["parameters"] == "pass" and "last-slot" in skipped(report)
    assert "grows with the tokens" in skipped(report)["last-slot"]
    positions = report["positions"]
    assert isinstance(positions, dict) and positions["position"][-1] == 511
    assert report["explanation"] is None


def _frozen_from_320_on(model: onnx.ModelProto) -> None:
    """RoPE stands still after the prompt and the teacher-forced steps."""
    for node in model.graph.node:
        node.input[:] = ["frozen" if name == "position_ids" else name for name in node.input]
    model.graph.initializer.append(helper.make_tensor("frozen.at", onnx.TensorProto.INT64, [], [319]))
    model.graph.node.insert(0, helper.make_node("Min", ["position_ids", "frozen.at"], ["frozen"]))


def test_a_cache_that_grows_is_followed_to_the_end(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(made / "growing.onnx", tmp_path / "odd.onnx", _frozen_from_320_on)
    verdicts, report = judged(path, made / "source", capsys, code=1)
    assert {name for name, verdict in verdicts.items() if verdict == "fail"} == {"spread"}
    assert "last-slot" in skipped(report)
    verdicts, _ = judged(path, made / "source", capsys, "-M", 320, code=0)
    assert set(verdicts.values()) == {"pass"}


def test_a_wrong_theta_is_named(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file, model, theta in (
        (made / "genai" / "model.onnx", made / "theta", "10000"),
        (made / "growing.onnx", made / "theta", "10000"),
    ):
        verdicts, report = judged(file, model, capsys, "--check", "prefill", "--check", "decode", code=1)
        assert verdicts == {"prefill": "fail", "decode": "fail"}
        assert causes(report)[0].startswith("wrong theta") and theta in causes(report)[0]
    assert compare(made / "growing.onnx", made / "theta", "--check", "prefill", "--report", tmp_path / "r") == 1
    out = capsys.readouterr().out
    assert out.startswith("FAIL") and "wrong theta" in " ".join(out.split())
    assert "layer 0, q after RoPE, at Add node_" in " ".join(out.split())


def _mask_dropped(model: onnx.ModelProto) -> None:
    """The graph takes every column for a token: right without padding, wrong with it."""
    ones = helper.make_node("Expand", ["all.one", "all.shape"], ["all.mask"])
    shape = helper.make_node("Shape", ["attention_mask"], ["all.shape"])
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name == "attention_mask":
                node.input[i] = "all.mask"
    model.graph.initializer.append(helper.make_tensor("all.one", onnx.TensorProto.INT64, [1], [1]))
    model.graph.node.insert(0, ones)
    model.graph.node.insert(0, shape)


def test_a_mask_that_is_not_heeded_fails_the_batch(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(made / "growing.onnx", tmp_path / "odd.onnx", _mask_dropped)
    verdicts, _ = judged(path, made / "source", capsys, "--check", "batch", "--check", "decode", code=1)
    assert verdicts == {"decode": "pass", "batch": "fail"}


def test_one_row_of_two_fails_the_batch(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(made / "growing.onnx", tmp_path / "odd.onnx", CUTS["one row"][0])
    verdicts, report = judged(path, made / "source", capsys, "--check", "batch", "--check", "decode", code=1)
    assert verdicts == {"decode": "pass", "batch": "fail"}
    assert "the output logits has the shape [1, " in report["checks"][1]["message"]  # type: ignore[index]


def test_last_logits_only(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(made / "growing.onnx", tmp_path / "last.onnx", give_last_logits)
    verdicts, report = judged(path, made / "source", capsys, "--decode-steps", 9, "-M", 64, code=0)
    assert verdicts.keys() >= APPLIES
    artifact = report["artifact"]
    assert isinstance(artifact, dict) and artifact["last_logits_only"] is True


def test_a_check_that_does_not_apply_is_no_pass(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(made / "growing.onnx", made / "source", "--check", "last-slot") == 3
    assert "could not be judged: last-slot" in capsys.readouterr().out


def test_bad_input_is_one_message(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    (tmp_path / "alone.onnx").write_bytes((made / "genai" / "model.onnx").read_bytes())
    wide = tmp_path / "wide"
    wide.mkdir()
    growing, source = made / "growing.onnx", made / "source"
    cases = [
        ([growing, "--onnx", growing, "--model", source], "are two artifacts"),
        (["--onnx", growing], "needs --model CHECKPOINT"),
        (["--model", source], "there is nothing to judge"),
        (["--onnx", growing, "--model", source, "--backend", "pt2"], "runs on onnxruntime"),
        (["--onnx", tmp_path / "none.onnx", "--model", source], "there is no file"),
        (["--onnx", tmp_path / "text.onnx", "--model", source], "is not a readable ONNX file"),
        (
            ["--onnx", tmp_path / "alone.onnx", "--model", source],
            "model.onnx.data is missing. alone.onnx keeps its weights there",
        ),
        (["--onnx", growing, "--model", wide], "is empty"),
        (["--onnx", growing, "--model", source, "-M", "513"], "more than the 512 positions"),
    ]
    for arguments, message in cases:
        assert main(["compare", *map(str, arguments)]) == 2, arguments
        captured = capsys.readouterr()
        assert message in " ".join(captured.err.split()) and captured.out == "" and "Traceback" not in captured.err


@pytest.mark.full
def test_a_file_of_optimum_itself(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """optimum-onnx needs its own environment (torch and optimum-onnx 0.1 with the transformers it asks for)."""
    command = os.environ.get("BLOCKEXPORT_OPTIMUM")
    if not command:
        pytest.skip("BLOCKEXPORT_OPTIMUM names no optimum-cli")
    for source, code in (("source", 0), ("theta", 1)):
        # The older transformers reads theta at the top of the config only.
        old = tmp_path / source
        old.mkdir()
        for path in (made / source).iterdir():
            (old / path.name).write_bytes(path.read_bytes())
        config = json.loads((old / "config.json").read_text())
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        (old / "config.json").write_text(json.dumps(config))
        exported = tmp_path / f"{source}-onnx"
        arguments = ["export", "onnx", "--model", str(old), "--task", "text-generation-with-past", str(exported)]
        # Its own comparison is against a fixed 1e-5 and may fail; the file is written all the same.
        subprocess.run([command, *arguments], capture_output=True, check=False, cwd=tmp_path)
        verdicts, report = judged(exported / "model.onnx", made / "source", capsys, code=code)
        assert set(verdicts) >= APPLIES
        if code:
            assert causes(report)[0].startswith("wrong theta")
