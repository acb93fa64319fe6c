"""The small models of the script beside the repository that a judge once got wrong, each with five relatives of other
families, dimensions, precisions and places: a sound file passes, and one whose numbers say nothing never does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport.compare.core.check import Verdict
from blockexport.compare.judged_bundle import bundle_options
from blockexport.compare.report.report import Report
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.precision import Precision
from blockexport.runtime.backends import usual_backend
from blockexport.runtime.open import open_decoder
from tests.compare.judged import judge
from tests.exported import export
from tests.support import faults_script

FP32, FP16, BF16 = Precision.FP32, Precision.FP16, Precision.BF16
WIDE = {"head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 4}
ONE_HEAD = {"num_key_value_heads": 1, "hidden_size": 40, "intermediate_size": 51}
DEEP = {"num_hidden_layers": 4, "vocab_size": 211}
WINDOW = {"sliding_window": 7}


@dataclass(frozen=True)
class Relative:
    """How it differs from the input of the script: the family, the config's numbers, what is multiplied by how much."""

    kind: str = "Llama"
    precision: Precision = FP32
    seed: int = 0
    changes: dict[str, Any] = field(default_factory=dict)
    factor: float = 1
    where: str = "q_proj"
    bit: str = ""  # the tensor one of whose exponents has its highest bit turned over

    def write(self, make: Any, folder: Path) -> None:
        dtype = self.precision.torch_dtype if self.factor == 1 else torch.float32
        make.model(folder, self.kind, self.seed, dtype, **self.changes)
        if self.factor > 1:
            make.sharpen(folder, self.factor, self.where)
        if self.bit:
            make.edit(folder, lambda w: w[self.bit].view(torch.int32).view(-1)[5:6].bitwise_xor_(1 << 30))


SOUND: dict[str, tuple[Precision, list[Relative]]] = {
    "flip-in-bf16": (
        BF16,
        [
            Relative("Qwen3", BF16, 22),
            Relative("Mistral", BF16, 3, WINDOW),
            Relative("Qwen2", BF16, 5, WIDE),
            Relative("Llama", BF16, 9, ONE_HEAD),
            Relative("Llama", FP16, 22, DEEP),
        ],
    ),
    "sharp-bf16": (
        BF16,
        [
            Relative("Qwen3", BF16, 27, factor=3, where="q_norm"),
            Relative("Mistral", BF16, 2, WINDOW, 5, "k_proj"),
            Relative("Qwen2", BF16, 4, WIDE, 3, "layers.1.self_attn.q_proj"),
            Relative("Llama", FP16, 27, ONE_HEAD, 5),
            Relative("Llama", BF16, 8, DEEP, 3, "layers.0.self_attn.k_proj"),
        ],
    ),
    "lucky-position-bf16": (
        BF16,
        [
            Relative("Qwen3", BF16, 10, factor=10, where="k_norm"),
            Relative("Mistral", BF16, 1, WINDOW, 10),
            Relative("Qwen2", BF16, 6, WIDE, 10, "layers.1.self_attn.q_proj"),
            Relative("Llama", FP16, 10, ONE_HEAD, 10),
            Relative("Llama", BF16, 7, {"vocab_size": 211}, 10, "layers.0.self_attn.k_proj"),
        ],
    ),
    "sharp-fp32": (
        FP32,
        [
            Relative("Qwen3", FP32, 1, factor=100, where="q_norm"),
            Relative("Mistral", FP32, 2, WINDOW, 30, "k_proj"),
            Relative("Qwen2", FP32, 3, WIDE, 30),
            Relative("Llama", FP32, 4, ONE_HEAD, 100),
            Relative("Llama", FP32, 5, DEEP, 30, "layers.1.self_attn.q_proj"),
        ],
    ),
}
EMPTY: list[Relative] = [
    Relative("Llama", changes=ONE_HEAD, bit="model.layers.0.mlp.gate_proj.weight"),
    Relative("Mistral", changes=WINDOW, bit="model.layers.1.self_attn.o_proj.weight"),
    Relative("Qwen2", bit="model.layers.0.mlp.down_proj.weight"),
    Relative("Qwen3", changes=WIDE, bit="model.layers.1.mlp.up_proj.weight"),
    Relative("Llama", changes=DEEP, bit="model.layers.3.self_attn.v_proj.weight"),
]


def judged(write: Callable[[Path], object], precision: Precision, folder: Path) -> Report:
    """The judgement on a bundle of the model that `write` puts into a folder."""
    write(folder / "model")
    checkpoint, backend = open_checkpoint(str(folder / "model")), usual_backend(precision)
    export(checkpoint, folder / "bundle", precision, slots=48)
    return judge(
        open_decoder(folder / "bundle", backend, threads=1), checkpoint, bundle_options(folder / "bundle", backend)
    )


@pytest.mark.parametrize("name", SOUND)
def test_an_input_that_failed_though_it_is_sound_passes(name: str, tmp_path: Path) -> None:
    report = judged(faults_script().CASES[name][0], SOUND[name][0], tmp_path)
    assert report.verdict is Verdict.PASS, report.summary


@pytest.mark.parametrize(
    ("name", "relative"),
    [pytest.param(name, one, id=f"{name}-{i}") for name, (_, some) in SOUND.items() for i, one in enumerate(some)],
)
def test_a_sound_relative_is_no_false_alarm(name: str, relative: Relative, tmp_path: Path) -> None:
    """The sharpest may come out as not judged, as noise of their precision."""
    report = judged(partial(relative.write, faults_script()), relative.precision, tmp_path)
    assert report.verdict is not Verdict.FAIL, (relative, report.summary)
    assert report.verdict is Verdict.PASS or relative.factor >= 10


def test_numbers_that_overflow_are_not_judged_with_the_reason(tmp_path: Path) -> None:
    report = judged(faults_script().CASES["empty-pass"][0], FP32, tmp_path)
    assert report.verdict is Verdict.NOT_JUDGED
    assert "float32 ends at 3.40282e+38" in report.summary and "numbers are at fault" in report.summary


@pytest.mark.parametrize("relative", EMPTY, ids=lambda one: str(one.bit))
def test_numbers_that_overflow_elsewhere_are_not_judged_either(relative: Relative, tmp_path: Path) -> None:
    """Zeros from the norm that overflows, or NaN, in one row of a batch or in all."""
    report = judged(partial(relative.write, faults_script()), FP32, tmp_path)
    assert report.verdict is Verdict.NOT_JUDGED, report.summary
