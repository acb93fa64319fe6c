"""`blockexport compare` from the command line: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from blockexport.cli.main import main
from blockexport.compare.checks.catalogue import choose_checks
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.precision import Precision
from tests.exported import export
from tests.small_models import small_config, small_weights, write_folder

CONFIG = small_config("qwen3", max_position_embeddings=128)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint `source` and its bundle `bundle` with 64 cache slots."""
    folder = tmp_path_factory.mktemp("cömpare here")
    write_folder(folder / "source", CONFIG, small_weights(CONFIG))
    export(open_checkpoint(str(folder / "source")), folder / "bundle", slots=64)
    return folder


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that may be spoilt."""
    return Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))


def compare(*arguments: object) -> int:
    return main(["compare", *map(str, arguments)])


def spoil_graph(bundle: Path, change: Any) -> None:
    """Apply `change(model)` to the bundle's ONNX file."""
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    change(model)
    (bundle / "model.onnx").write_bytes(model.SerializeToString())


def test_a_good_bundle(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(made / "bundle", "--report", tmp_path / "a") == 0
    out = capsys.readouterr().out
    assert out.startswith("PASS: fp32 in onnxruntime equals eager PyTorch")
    names = [entry.name for entry in choose_checks() if entry.name not in ("integers", "placement")]
    assert all(f"\n{name} " in out for name in names)
    assert compare(made / "bundle", "--report", tmp_path / "b") == 0
    for name in ("report.json", "report.md"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    assert report["verdict"] == "pass" and report["schema_version"] == 1
    assert [check["name"] for check in report["checks"]] == names
    assert report["skipped"] == [
        {"name": "integers", "reason": "no weights are quantised"},
        {"name": "placement", "reason": "no ONNX graph runs on a GPU here"},
    ]
    assert report["positions"]["position"] == list(range(64))
    assert all(len(column) == 64 for column in report["positions"].values())
    markdown = (tmp_path / "a" / "report.md").read_text()
    assert markdown.startswith("# Pass\n") and "| decode | pass |" in markdown
    assert str(tmp_path) not in markdown + json.dumps(report)


def test_json_is_the_report(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(made / "bundle", "--json", "--check", "decode", "--decode-steps", 5) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert [check["name"] for check in report["checks"]] == ["decode"]
    assert report["checks"][0]["figures"]["positions"] == 5 and captured.err == ""


@pytest.mark.parametrize("slots", [16, 128])
def test_other_numbers_of_cache_slots(made: Path, slots: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(made / "bundle", "-M", slots, "--json") == 0
    assert json.loads(capsys.readouterr().out)["artifact"]["max_sequence_length"] == slots


def _wrong_epsilon(model: onnx.ModelProto) -> None:
    norms = [node for node in model.graph.node if node.op_type == "RMSNormalization"]
    next(a for a in norms[1].attribute if a.name == "epsilon").f = 1e-3


def _wrong_scale(model: onnx.ModelProto) -> None:
    attention = [node for node in model.graph.node if node.op_type == "Attention"]
    next(a for a in attention[1].attribute if a.name == "scale").f = 1.01


def _one_layers_keys_for_anothers(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        names = [name.replace("layers.2.self_attn.k_proj", "layers.1.self_attn.k_proj") for name in node.input]
        del node.input[:]
        node.input.extend(names)


@pytest.mark.parametrize("change", [_wrong_epsilon, _wrong_scale, _one_layers_keys_for_anothers])
def test_a_wrong_graph_fails(bundle: Path, change: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil_graph(bundle, change)
    assert compare(bundle, "--report", tmp_path / "r") == 1
    assert capsys.readouterr().out.startswith("FAIL: fp32 in onnxruntime differs from eager PyTorch: ")
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    failed = {check["name"] for check in report["checks"] if check["verdict"] == "fail"}
    assert failed >= {"prefill", "decode", "last-slot", "batch"}


def test_one_wrong_weight_fails(bundle: Path) -> None:
    path = bundle / "model.safetensors"
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    start = 8 + length + json.loads(data[8 : 8 + length])["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0]
    # Its 512th weight, in the middle of one row of 80.
    data[start + 2048 : start + 2052] = np.float32(0.9).tobytes()
    path.write_bytes(data)
    assert compare(bundle, "--check", "prefill") == 1


def test_a_weight_that_is_in_the_file_twice_is_counted(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def copy_one(model: onnx.ModelProto) -> None:
        copy = next(t for t in model.graph.initializer if t.name == "model.norm.weight")
        model.graph.initializer.add().CopyFrom(copy)
        model.graph.initializer[-1].name = "another.norm.weight"

    spoil_graph(bundle, copy_one)
    assert compare(bundle, "--check", "parameters") == 1
    assert "another.norm.weight is no weight of this model" in capsys.readouterr().out


def test_the_source_is_needed_and_must_be_the_one(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path / "source", CONFIG, small_weights(CONFIG))
    export(open_checkpoint(str(tmp_path / "source")), tmp_path / "bundle", slots=64)
    write_folder(tmp_path / "source", CONFIG, small_weights(CONFIG, seed=1))
    assert compare(tmp_path / "bundle") == 3
    assert "is no longer what the bundle was exported from" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "source")
    assert compare(tmp_path / "bundle") == 3
    assert "--model" in capsys.readouterr().err
    assert compare(tmp_path / "bundle", "--model", made / "source") == 0


def test_a_source_with_another_theta_is_judged_and_fails(made: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "other", replace(CONFIG, rope_theta=20_000.0), small_weights(CONFIG))
    assert compare(made / "bundle", "--model", tmp_path / "other", "--check", "prefill") == 1


@pytest.mark.parametrize(
    ("prefix", "noted"), [("_orig_mod.", True), ("module.", True), ("language_model.", True), ("", False)]
)
def test_what_is_to_be_known_of_the_model_that_was_named_is_noted(
    prefix: str, noted: bool, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = {prefix + name: values for name, values in small_weights(CONFIG).items()}
    write_folder(tmp_path / "other", CONFIG, weights)
    options = ("--model", tmp_path / "other", "--check", "prefill", "--report", tmp_path / "r")
    assert compare(made / "bundle", *options) == 0
    assert ("tensors have other names in the checkpoint" in " ".join(capsys.readouterr().out.split())) is noted
    assert bool(json.loads((tmp_path / "r" / "report.json").read_text())["notes"]) is noted


def test_a_source_of_another_shape_is_refused(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(CONFIG, intermediate_size=88)
    write_folder(tmp_path / "other", config, small_weights(config))
    assert compare(made / "bundle", "--model", tmp_path / "other") == 2
    assert "model.layers.0.mlp.gate_proj.weight is [80, 48] in the bundle and [88, 48] there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--check", "prefil"], "no check 'prefil' (did you mean prefill?): there are prefill, decode"),
        (["--backend", "tensorflow"], "no backend 'tensorflow'"),
        (["--decode-steps", "64"], "at most 63 steps"),
        (
            ["--tokens", "1,97"],
            "the id 97 in the given token ids is outside the vocabulary of 97 tokens: give ids from 0 to 96",
        ),
        (["--tokens", "one"], "write them as 1,2,3"),
        (["--text", "TEXT"], "there is no tokenizer"),
        (["--text", "TEXT", "--tokens", "1"], "contradict each other"),
        (["--backend", "pt2"], "has no model.pt2"),
    ],
)
def test_wrong_use(
    made: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "TEXT").write_text("Some text.")
    given = [str(tmp_path / "TEXT") if argument == "TEXT" else argument for argument in arguments]
    assert compare(made / "bundle", *given) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


def test_a_folder_that_is_no_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(tmp_path) == 2
    assert "is not a bundle" in capsys.readouterr().err


def test_given_tokens_are_used(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(made / "bundle", "--tokens", "5,6,7", "--json") == 0
    assert json.loads(capsys.readouterr().out)["tokens"]["origin"] == "given token ids"


def test_half_precision(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = open_checkpoint(str(made / "source"))
    export(source, tmp_path / "fp16", Precision.FP16, slots=64)
    assert compare(tmp_path / "fp16", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["artifact"]["arithmetic"]["is_target"] is False
    assert report["summary"].endswith("the arithmetic is not the target's")
    assert report["weight_rounding"]["rms"] > 1e-5
    export(source, tmp_path / "bf16", Precision.BF16, slots=64)
    assert compare(tmp_path / "bf16", "--backend", "onnxruntime") == 3
    assert "cannot be judged" in capsys.readouterr().err
    assert compare(tmp_path / "bf16") == 0, "judged by the replay"


def test_eager_as_a_backend(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(made / "bundle", "--backend", "eager", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["skipped"] == [
        {"name": "growth", "reason": "all slots are there from the start"},
        {"name": "integers", "reason": "no weights are quantised"},
        {"name": "parameters", "reason": "this backend runs no file of the bundle"},
        {"name": "types", "reason": "this backend runs no ONNX graph"},
        {"name": "constants", "reason": "this backend runs no ONNX graph"},
        {"name": "placement", "reason": "no ONNX graph runs on a GPU here"},
    ]
