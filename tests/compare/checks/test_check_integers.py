"""The integer path of a quantised bundle: right in every form, and each way to round worse is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from blockexport.compare.core import integer_activations
from blockexport.compare.core.check import CheckResult, Verdict
from blockexport.compare.core.integer_activations import in_8_bits
from blockexport.compare.judge import JudgeOptions, run_checks
from blockexport.compare.judged_bundle import as_stored, bundle_options, judge_bundle
from blockexport.export.bundle.manifest import read_manifest
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.precision import Precision
from blockexport.models.quantisation import quantisation_of
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.open import open_decoder
from tests.exported import export, random_model

SLOTS = 64
SOURCE = random_model(hidden_size=72, intermediate_size=100)  # one block of 64 and a part of one; and of 32
ASKED = JudgeOptions(checks=("integers",))

FORMS = {
    "int4": (quantisation_of("int4"), Precision.FP32),
    "int8, blocks of 64": (quantisation_of("int8", 64), Precision.FP32),
    "int4 in fp16, blocks of 128": (quantisation_of("int4", 128, "int4"), Precision.FP16),
}


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that lose nothing to speak of: what is seen is the activations'."""
    folder = tmp_path_factory.mktemp("integers") / "int8"
    export(SOURCE, folder, Precision.FP32, SLOTS, quantisation=quantisation_of("int8"))
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_the_runtimes_integers_err_as_pytorchs_do(form: str, tmp_path: Path) -> None:
    quantisation, precision = FORMS[form]
    export(SOURCE, tmp_path, precision, SLOTS, quantisation=quantisation)
    result = judge_bundle(tmp_path, ASKED, made_of=SOURCE).report.checks[0]
    assert result.verdict is Verdict.PASS, result.message
    assert result.stretch is not None and result.stretch.rms_floor > 1e-3
    assert result.stretch.rms_ratio > 0.7, "that is not the integer path"


def in_6_bits(x_TK: torch.Tensor) -> torch.Tensor:
    scales_T1 = x_TK.abs().amax(-1, True) / 31
    return (x_TK / scales_T1).round() * scales_T1


def saturated(x_TK: torch.Tensor) -> torch.Tensor:
    """The sum of two products does not fit into 16 bits: the largest inputs come out smaller."""
    limit = 0.7 * x_TK.abs().amax(-1, True)
    return in_8_bits(x_TK, 32).clamp(-limit, limit)


def of_the_first_row(x_TK: torch.Tensor) -> torch.Tensor:
    """One row's scales are taken for all."""
    scales_1K = x_TK[:1].abs().amax(-1, True) / 127
    return (x_TK / scales_1K).round().clamp(-128, 127) * scales_1K


def a_block_forgotten(x_TK: torch.Tensor) -> torch.Tensor:
    rounded_TK = in_8_bits(x_TK, 32)
    rounded_TK[:, 64:] = 0
    return rounded_TK


def run_with(rounding: Callable[[torch.Tensor], torch.Tensor], folder: Path) -> Decoder:
    """PyTorch on the bundle's weights, which rounds what goes into every layer by a rule of its own."""
    checkpoint, _ = as_stored(SOURCE, folder, read_manifest(folder))
    model = load_model(checkpoint, torch.float32, SLOTS)
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(lambda module, inputs: rounding(inputs[0]))
    return EagerDecoder(model, SLOTS)


def judged(folder: Path, decoder: Callable[[], Decoder]) -> CheckResult:
    """With what `decoder` gives in the place of the runtime's integers."""
    checkpoint, _ = as_stored(SOURCE, folder, read_manifest(folder))
    options = replace(bundle_options(folder, asked=ASKED), in_integers=decoder)
    return run_checks(open_decoder(folder, exact=True), checkpoint, options).report.checks[0]


@pytest.mark.parametrize("mistake", [in_6_bits, saturated, of_the_first_row, a_block_forgotten])
def test_what_rounds_worse_is_told(int8: Path, mistake: Callable[[torch.Tensor], torch.Tensor]) -> None:
    right = judged(int8, lambda: run_with(lambda x_TK: in_8_bits(x_TK, 32), int8))
    assert right.verdict is Verdict.PASS, right.message
    wrong = judged(int8, lambda: run_with(mistake, int8))
    assert wrong.verdict is Verdict.FAIL
    assert wrong.message.startswith("activations in 8 bits (64 positions): "), wrong.message
    assert "times eager's" in wrong.message


def test_a_model_that_8_bits_lose_is_not_judged(int8: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_activations, "HIGHEST", 1)
    result = judged(int8, lambda: open_decoder(int8))
    assert result.verdict is Verdict.NOT_JUDGED and "what is compared is noise" in result.message


def test_who_is_not_asked(int8: Path, tmp_path: Path) -> None:
    def reason(folder: Path, backend: str) -> str:
        return dict(judge_bundle(folder, backend=backend, made_of=SOURCE).report.skipped)["integers"]

    assert reason(int8, "replay") == "it is not known to be run with activations in 8 bits"
    export(SOURCE, tmp_path, Precision.FP32, SLOTS)
    assert reason(tmp_path, "onnxruntime") == "no weights are quantised"


def test_a_row_is_rounded_block_by_block_in_the_order_that_is_multiplied() -> None:
    random = np.random.default_rng(3)
    x = random.standard_normal((5, 11)).astype(np.float32)
    x[2, :4] = 0  # the first block of a row
    order = random.permutation(11)
    wanted = np.zeros_like(x)
    for row in range(5):
        for start in range(0, 11, 4):
            inputs = order[start : start + 4]
            scale = max(abs(float(x[row, k])) for k in inputs) / 127
            for k in inputs:
                wanted[row, k] = 0 if scale == 0 else round(float(x[row, k]) / scale) * scale
    found = in_8_bits(torch.from_numpy(x), 4, torch.from_numpy(order))
    assert np.abs(found.numpy() - wanted).max() < 1e-6
    in_place = in_8_bits(torch.from_numpy(x[:, order].copy()), 4)
    assert torch.equal(found[:, torch.from_numpy(order)], in_place)
