"""`blockexport onnx --quantize`: what it makes, what judges it, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blockexport.cli.main import main
from blockexport.export.bundle.manifest import read_manifest
from blockexport.models.quantisation import quantisation_of
from tests.compare.static_judge import spoilt
from tests.small_models import small_config, small_weights, write_folder
from tests.support import REPOSITORY

TEXT = str(REPOSITORY / "README.md")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied model in int4, judged."""
    folder = tmp_path_factory.mktemp("quantized")
    config = small_config("llama", tie_word_embeddings=True, max_position_embeddings=64)
    model = write_folder(folder / "model", config, small_weights(config))
    options = ["--quantize", "int4", "--block-size", "64", "--head", "int4", "--quiet"]
    assert main(["onnx", str(model), "-o", str(folder / "bundle"), *options]) == 0
    return folder / "bundle"


def test_the_bundle_is_what_was_asked_for_and_was_judged(bundle: Path) -> None:
    assert read_manifest(bundle).quantisation == quantisation_of("int4", 64, "int4", "int8")
    report = json.loads((bundle / "parity" / "report.json").read_text())
    assert report["verdict"] == "pass"
    assert "quantised" in " ".join(report["notes"])
    assert (bundle / "golden.safetensors").is_file()


def test_it_is_judged_again_replayed_and_its_golden_vectors_hold(bundle: Path) -> None:
    assert main(["compare", str(bundle), "--quiet"]) == 0
    assert main(["compare", str(bundle), "--quiet", "--backend", "replay", "--check", "prefill"]) == 0
    assert main(["selftest", str(bundle), "--quiet"]) == 0


def test_inspect_says_that_the_bundle_takes_less(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(bundle), "--json"]) == 0
    captured = capsys.readouterr()
    held = sum((bundle / name).stat().st_size for name in ("model.safetensors", "rope.safetensors"))
    assert f"note: {bundle} is quantised (int4): its weights and RoPE tables take {held:,} bytes" in captured.err
    assert json.loads(captured.out)["weight_bytes"] > held


def test_inspect_reads_the_config_beside_any_manifest(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(bundle / "config.json", tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    assert main(["inspect", str(tmp_path)]) == 0
    assert "Counted here is the model of config.json alone" in capsys.readouterr().err


def test_a_spoilt_scale_is_found_and_named(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "model.layers.2.mlp.down_proj.weight"

    def halved(scales: torch.Tensor) -> torch.Tensor:
        scales[1, 5] /= 2
        return scales

    bad = spoilt(bundle, tmp_path / "bad", "model.safetensors", {f"{name}.scales": halved})
    assert main(["compare", str(bad)]) == 1
    assert name in capsys.readouterr().out


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the command, which must fail with one message and leave nothing; returns the message."""

    def run(*options: str) -> str:
        assert main(["onnx", "tiny", "-o", str(tmp_path / "new"), *options]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1
        assert list(tmp_path.iterdir()) == []
        return captured.err

    return run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--quantize", "int3"), "--quantize 'int3': there are int4, int8"),
        (("--quantize", "int4", "--block-size", "16"), "--block-size 16: there are 32, 64, 128"),
        (("--quantize", "int4", "--head", "int2"), "--head 'int2': there are int4, int8, float"),
        (("--quantize", "int4", "--embedding", "int4"), "--embedding 'int4': there are int8, float"),
        (("--head", "int4"), "--head says how a bundle is quantised: add --quantize"),
        (("--block-size", "32"), "--block-size says how a bundle is quantised"),
        (
            ("--quantize", "int4", "--headless", "--head", "int4"),
            "has neither embedding nor output head: leave out --head",
        ),
        (("--quantize", "int4", "--headless", "--embedding", "float"), "leave out --embedding"),
        (("--calibrate", TEXT), "--calibrate says how a bundle is quantised: add --quantize int4"),
        (("--quantize", "int8", "--calibrate", TEXT), "--calibrate chooses codes of 4 bits, and here are none"),
        (("--quantize", "int4", "--calibrate", TEXT), "needs a tokenizer to read it with, and tiny has none"),
        (("--quantize", "int8", "--pt2"), "--pt2 has no quantised form"),
    ],
)
def test_what_makes_no_sense_is_refused(refused: Callable[..., str], options: tuple[str, ...], said: str) -> None:
    assert said in refused(*options)


def test_what_has_no_quantised_form_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aoti", str(bundle)]) == 2
    assert "is quantised, and aoti has no quantised form" in capsys.readouterr().err
    assert main(["lint", str(bundle)]) == 1
    assert "looked-up-codes" in capsys.readouterr().out
