"""`blockexport onnx` on models that a precision cannot hold, or on which nothing can be told: never a pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blockexport.cli.main import main
from tests.export.tensorrt.trt_support import rtx
from tests.small_models import Weights, small_config, small_weights, write_folder

UP, HEAD, DOWN = "model.layers.1.mlp.up_proj.weight", "lm_head.weight", "model.layers.2.mlp.down_proj.weight"


def overflow(weights: Weights) -> None:
    weights[UP] *= 2e4


def vanish(weights: Weights) -> None:
    weights[HEAD] *= 1e-9


def overflow_the_stream(weights: Weights) -> None:
    """What a layer adds to the residual stream is beyond the type, all that it is made of within."""
    weights[UP.replace("up_proj", "down_proj")] *= 2e4
    weights[UP.replace("up_proj", "gate_proj")] *= 30


def vanish_in_the_norm(weights: Weights) -> None:
    weights["model.norm.weight"] *= 1e-8


def flip_a_bit(weights: Weights) -> None:
    weights[DOWN].view(torch.int32)[3, 5].bitwise_xor_(1 << 30)


@pytest.mark.parametrize(
    ("edit", "precision", "code", "said"),
    [
        (overflow, "--fp16", 1, ("layer 1, mlp.up_proj becomes NaN or infinite", "float16 ends at 65504", "--bf16")),
        (vanish, "--fp16", 1, ("float16 cannot hold this model", "lm_head.weight loses 100% of its size", "--fp32")),
        (overflow_the_stream, "--fp16", 1, ("layer 1, mlp.down_proj becomes NaN or infinite", "65504", "--fp32")),
        (vanish_in_the_norm, "--fp16", 1, ("model.norm.weight loses 100% of its size", "--bf16 or --fp32")),
        (flip_a_bit, "--fp32", 3, ("NOT JUDGED", "what is compared is noise", "the checkpoint's own numbers")),
        (vanish, "--fp32", 0, ("PASS",)),
    ],
)
def test_what_the_precision_cannot_hold_is_no_pass(
    edit: Callable[[Weights], None],
    precision: str,
    code: int,
    said: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = small_config()
    weights = small_weights(config)
    edit(weights)
    source = write_folder(tmp_path / "source", config, weights)
    assert main(["onnx", str(source), "-o", str(tmp_path / "b"), "-M", "40", precision, "--no-explain"]) == code
    out = " ".join(capsys.readouterr().out.split())
    assert all(part in out for part in said), out
    assert (tmp_path / "b").exists() is (code != 1) and (tmp_path / "b.rejected").exists() is (code == 1)


def test_no_engine_is_built_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rtx()
    config = small_config()
    weights = small_weights(config)
    overflow(weights)
    source = write_folder(tmp_path / "source", config, weights)
    target = ("--fp16", "--backend", "tensorrt-rtx", "--compute-capability", "8.9", "--no-explain", "-q")
    assert main(["trt", str(source), "-o", str(tmp_path / "b"), "-M", "40", *target]) == 1
    assert "no engine was built, because the graph did not pass" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.engine")) and not (tmp_path / "b").exists()


def test_a_text_that_says_nothing_is_not_the_checkpoints_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config()
    source = write_folder(tmp_path / "source", config, small_weights(config))
    assert main(["onnx", str(source), "-o", str(tmp_path / "b"), "-M", "40", "--no-compare", "-q"]) == 0
    assert main(["compare", str(tmp_path / "b"), "--tokens", ",".join(["5"] * 40), "--no-explain"]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "one token over and over: judge another" in out and "own numbers are at fault" not in out
