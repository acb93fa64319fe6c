"""`--lora`: a bundle of a base model with an adapter states both, and is judged on both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockexport.cli.main import main
from blockexport.models.checkpoints.sources import open_checkpoint
from tests.lora_folders import low_ranks, write_adapter
from tests.small_models import small_config, small_weights, write_folder

CONFIG = small_config("qwen3", num_hidden_layers=2, tie_word_embeddings=True)
WEIGHTS = small_weights(CONFIG)
NAME = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, an adapter, and their bundle."""
    folder = tmp_path_factory.mktemp("lora")
    write_folder(folder / "base", CONFIG, WEIGHTS)
    write_adapter(folder / "adapter", low_ranks(WEIGHTS, "q_proj", "down_proj"))
    sources = [str(folder / "base"), "--lora", str(folder / "adapter")]
    assert main(["onnx", *sources, "-o", str(folder / "bundle"), "-M", "48", "--quiet"]) == 0
    return folder


def parameters(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """The exit code of `compare` on one check, and all that it says."""
    code = main(["compare", *map(str, arguments), "--check", "parameters", "--json", "--no-explain"])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_the_file_has_the_merged_weights_and_the_manifest_says_of_what(made: Path) -> None:
    merged = open_checkpoint(str(made / "base"), lora=made / "adapter")
    stored = load_file(made / "bundle" / "model.safetensors")
    assert torch.equal(stored[NAME], merged.read(NAME)) and not torch.equal(stored[NAME], WEIGHTS[NAME])
    source = json.loads((made / "bundle" / "manifest.json").read_text())["source"]
    assert source["reference"] == str(made / "base") and source["adapter"]["reference"] == str(made / "adapter")
    assert len(source["adapter"]["digest"]) == 64


def test_it_is_judged_on_both_without_naming_them(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = parameters(capsys, made / "bundle")
    assert code == 0 and "or in 4 tensors what base model and adapter give, rounded" in said


def test_a_moved_base_model_is_merged_with_the_recorded_adapter(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made / "base", tmp_path / "moved")
    assert parameters(capsys, made / "bundle", "--model", tmp_path / "moved")[0] == 0


def test_a_model_that_was_merged_elsewhere_is_taken_as_it_is(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    merged = open_checkpoint(str(made / "base"), lora=made / "adapter")
    write_folder(tmp_path / "merged", CONFIG, {name: merged.read(name) for name in merged.entries})
    named = ("--model", tmp_path / "merged", "--lora")
    assert parameters(capsys, made / "bundle", *named, "none")[0] == 0
    code, said = parameters(capsys, made / "bundle", *named, made / "adapter")
    assert code == 1 and f"{NAME} is" in said


def other_values(adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    save_file({name: 1.5 * value for name, value in load_file(path).items()}, path)


def other_alpha(adapter: Path) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "lora_alpha": 3}))


@pytest.mark.parametrize(
    ("change", "named"), [(other_alpha, "has 2 times the adapter's change"), (other_values, "0.4444 times")]
)
def test_another_adapter_is_not_judged_unless_it_is_named(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None], named: str
) -> None:
    shutil.copytree(made / "adapter", tmp_path / "adapter")
    change(tmp_path / "adapter")
    code, said = parameters(capsys, made / "bundle", "--lora", tmp_path / "adapter")
    assert code == 1 and named in said
    manifest = json.loads((made / "bundle" / "manifest.json").read_text())
    shutil.copytree(made / "bundle", tmp_path / "bundle")
    manifest["source"]["adapter"]["reference"] = str(tmp_path / "adapter")
    (tmp_path / "bundle" / "manifest.json").write_text(json.dumps(manifest))
    code, said = parameters(capsys, tmp_path / "bundle")
    assert code == 3 and "is no longer what was merged" in said and "--lora" in said
    shutil.rmtree(tmp_path / "adapter")
    code, said = parameters(capsys, tmp_path / "bundle")
    assert code == 3 and "does not open" in said and "--lora" in said


def test_weights_without_the_adapter_are_told(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["onnx", str(made / "base"), "-o", str(tmp_path / "plain"), "-M", "48", "--no-compare", "-q"]) == 0
    assert "adapter" not in json.loads((tmp_path / "plain" / "manifest.json").read_text())["source"]
    code, said = parameters(capsys, tmp_path / "plain", "--lora", made / "adapter")
    assert code == 1 and "is the base model's, without the adapter" in said


@pytest.mark.parametrize("quantize", ["int4", "int8"])
def test_quantised_weights_are_those_of_the_merged(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], quantize: str
) -> None:
    sources = [str(made / "base"), "--lora", str(made / "adapter")]
    assert main(["onnx", *sources, "-o", str(tmp_path / "b"), "-M", "48", "--quantize", quantize, "--quiet"]) == 0
    capsys.readouterr()
    code, said = parameters(capsys, tmp_path / "b")
    assert code == 0 and "or in 4 tensors what base model and adapter give" in said
    assert parameters(capsys, tmp_path / "b", "--model", made / "base", "--lora", "none")[0] == 1


def test_eager_runs_the_merged_model(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["compare", str(made / "bundle"), "--backend", "eager", "--check", "prefill", "--quiet"])
    assert code == 0, capsys.readouterr()


WRONG: list[tuple[list[str], int, str]] = [
    (["onnx", "{base}", "--lora", "{base}", "-o", "{out}"], 2, "no adapter that peft saved"),
    (["onnx", "{adapter}", "-o", "{out}"], 2, "--lora {adapter}"),
    (["onnx", "{base}", "--lora", "{adapter}", "-o", "{adapter}/in"], 2, "lies in the input"),
    (["compare", "--onnx", "{bundle}/model.onnx", "--model", "{base}", "--lora", "{adapter}"], 2, "merge_and_unload"),
    (
        ["trt", "{bundle}", "--backend", "tensorrt-rtx", "--compute-capability", "8.9", "--lora", "{adapter}"],
        2,
        "--lora is for a checkpoint",
    ),
]


@pytest.mark.parametrize(("arguments", "code", "said"), WRONG)
def test_wrong_use(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    places: dict[str, Any] = {name: made / name for name in ("base", "adapter", "bundle")}
    assert main([argument.format(**places, out=tmp_path / "out") for argument in arguments]) == code
    told = capsys.readouterr().err
    assert said.format(**places) in told and not (tmp_path / "out").exists()
