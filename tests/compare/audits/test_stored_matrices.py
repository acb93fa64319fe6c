"""A quantised bundle is judged on the weights that it has, and those code by code against the checkpoint's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch

from blockexport.compare.audits.stored_matrices import StoredCheckpoint
from blockexport.compare.core.check import Verdict
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.judged_bundle import as_stored, bundle_options
from blockexport.compare.report.report import Report
from blockexport.export.bundle.manifest import read_manifest, write_manifest
from blockexport.export.onnx_export import export_onnx
from blockexport.export.weights.block_quantiser import quantise
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD
from blockexport.models.interface import Interface
from blockexport.models.precision import Precision
from blockexport.models.quantisation import quantisation_of
from blockexport.runtime.open import open_decoder
from tests.compare.judged import judge
from tests.compare.static_judge import spoilt
from tests.exported import EVERYTHING, gainful

SOURCE = gainful(replace(EVERYTHING, hidden_size=80, tie_word_embeddings=True))  # two blocks and a half
MATRIX = "model.layers.1.mlp.up_proj.weight"
BLOCK = 32


def _exported(folder: Path, kind: str, precision: Precision = Precision.FP32) -> Path:
    folder.mkdir()
    interface = Interface(SOURCE.config, precision.element, 48)
    write_manifest(folder, export_onnx(SOURCE, folder, interface, quantisation=quantisation_of(kind)))
    return folder


@pytest.fixture(scope="module")
def int4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _exported(tmp_path_factory.mktemp("stored") / "int4", "int4")


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _exported(tmp_path_factory.mktemp("stored") / "int8", "int8", Precision.FP16)


def _judged(folder: Path, *checks: str) -> Report:
    checkpoint, notes = as_stored(SOURCE, folder, read_manifest(folder))
    assert "quantised" in notes[0]
    options = replace(bundle_options(folder, asked=JudgeOptions(checks=checks)), explain=None)
    return judge(open_decoder(folder, verify="nothing", exact=True), checkpoint, options)


def test_the_checkpoint_has_the_weights_of_the_file(int4: Path) -> None:
    quantisation = quantisation_of("int4")
    stored = StoredCheckpoint(SOURCE, int4, quantisation)
    assert not stored.config.tie_word_embeddings and SOURCE.config.tie_word_embeddings
    for name in (MATRIX, OUTPUT_HEAD, EMBEDDING, "model.layers.0.self_attn.o_proj.weight"):
        scheme = quantisation.scheme_of(name)
        assert scheme is not None
        values = SOURCE.read(EMBEDDING if name == OUTPUT_HEAD else name)
        assert torch.equal(stored.read(name), quantise(name, values, scheme, torch.float16)[0].dequantised()), name
        assert stored.entries[name].dtype == "F32" and stored.entries[name].shape == values.shape
    assert torch.equal(stored.read("model.norm.weight"), SOURCE.read("model.norm.weight"))


@pytest.mark.parametrize("bits", ["int4", "int8"])
def test_a_good_bundle_passes_every_check(bits: str, request: pytest.FixtureRequest) -> None:
    report = _judged(request.getfixturevalue(bits))
    assert report.verdict is Verdict.PASS, [result for result in report.checks if result.verdict is not Verdict.PASS]
    assert {"parameters", "prefill", "decode", "types", "constants"} <= {result.check.name for result in report.checks}
    (said,) = [result.message for result in report.checks if result.check.name == "parameters"]
    assert "23 matrices have the codes nearest to the checkpoint's values" in said


def _halves_swapped(codes: torch.Tensor) -> torch.Tensor:
    return (codes << 4) | (codes >> 4)


def _one_block_halved(scales: torch.Tensor) -> torch.Tensor:
    scales[1, 3] /= 2
    return scales


def _last_two_exchanged(scales: torch.Tensor) -> torch.Tensor:
    return scales[[1, 0, 2]]


def _sign_turned(scales: torch.Tensor) -> torch.Tensor:
    scales[0] *= -1
    return scales


DEFECTS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "nibbles swapped": (f"{MATRIX}.codes", _halves_swapped),
    "codes off by eight": (f"{MATRIX}.codes", lambda codes: codes ^ 0x88),
    "one code off by one": (f"{MATRIX}.codes", lambda codes: codes.index_put((torch.tensor(77),), codes[77] ^ 1)),
    "one block's scale halved": (f"{MATRIX}.scales", _one_block_halved),
    "scales of the neighbouring block": (f"{MATRIX}.scales", _last_two_exchanged),
    "signs of scales lost": (f"{MATRIX}.scales", lambda scales: scales.abs()),
    "sign of a row of scales turned": (f"{MATRIX}.scales", _sign_turned),
    "a scale that is no number": (f"{MATRIX}.scales", lambda scales: scales.index_fill(1, torch.tensor(4), torch.nan)),
    "a norm's gain": ("model.norm.weight", lambda gain: gain * 1.0001),
}


@pytest.mark.parametrize("defect", list(DEFECTS))
def test_weights_that_are_not_the_checkpoints_are_named(int4: Path, tmp_path: Path, defect: str) -> None:
    name, change = DEFECTS[defect]
    bad = spoilt(int4, tmp_path / "bad", "model.safetensors", {name: change})
    (result,) = _judged(bad, "parameters").checks
    assert result.verdict is Verdict.FAIL
    assert name.removesuffix(".codes").removesuffix(".scales") in result.message


def test_int8_codes_clipped_early_are_seen(int8: Path, tmp_path: Path) -> None:
    change = {f"{MATRIX}.codes": lambda codes: codes.clamp(-120, 120)}
    (result,) = _judged(spoilt(int8, tmp_path / "bad", "model.safetensors", change), "parameters").checks
    assert result.verdict is Verdict.FAIL and MATRIX in result.message


def test_codes_nearest_on_a_grid_that_does_not_fit_are_seen(int4: Path, tmp_path: Path) -> None:
    values = SOURCE.read(MATRIX)
    scales = quantise(MATRIX, values, quantisation_of("int4").layers, torch.float16)[0].scales_GN
    small = (scales * 0.4).half()
    spread = small.float().repeat_interleave(BLOCK, 0)[: values.shape[1]]
    codes = (values.T / spread).round().clamp(-8, 7).to(torch.int8).reshape(-1).view(torch.uint8)
    packed = (codes[0::2] & 15) | (codes[1::2] << 4)
    changes = {f"{MATRIX}.codes": lambda _: packed, f"{MATRIX}.scales": lambda _: small}
    (result,) = _judged(spoilt(int4, tmp_path / "bad", "model.safetensors", changes), "parameters").checks
    assert result.verdict is Verdict.FAIL and f"{MATRIX} has scales that do not fit" in result.message


def test_another_scheme_in_the_manifest_is_named(int4: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(int4, bad)
    write_manifest(bad, replace(read_manifest(int4), quantisation=quantisation_of("int8", 64)))
    (result,) = _judged(bad, "parameters").checks
    assert result.verdict is Verdict.FAIL
    assert "has INT4 codes in blocks of 32, and the manifest says INT8 codes in blocks of 64" in result.message


def _rewired(folder: Path, target: Path, change: Callable[[onnx.GraphProto], None]) -> Path:
    shutil.copytree(folder, target)
    model = onnx.load(target / "model.onnx", load_external_data=False)
    change(model.graph)
    onnx.save(model, target / "model.onnx")
    return target


def test_a_graph_that_computes_another_model_on_good_weights_fails(int4: Path, tmp_path: Path) -> None:
    def exchange(graph: onnx.GraphProto) -> None:
        """The gate and up projections of two layers read each other's matrix."""
        makers = [n for n in graph.node if n.op_type == "Gemm" and ".gate_up_proj." in n.output[0]]
        makers[0].input[1], makers[1].input[1] = makers[1].input[1], makers[0].input[1]

    bad = _rewired(int4, tmp_path / "bad", exchange)
    verdicts = {result.check.name: result.verdict for result in _judged(bad, "parameters", "prefill").checks}
    assert verdicts == {"parameters": Verdict.PASS, "prefill": Verdict.FAIL}


def test_a_matrix_that_reads_anothers_scales_fails(int4: Path, tmp_path: Path) -> None:
    def exchange(graph: onnx.GraphProto) -> None:
        casts = [n for n in graph.node if n.op_type == "Cast" and ".gate_up_proj." in n.output[0]]
        casts[0].input[0], casts[1].input[0] = casts[1].input[0], casts[0].input[0]

    results = _judged(_rewired(int4, tmp_path / "bad", exchange), "parameters", "constants").checks
    assert [result.verdict for result in results] == [Verdict.FAIL, Verdict.FAIL]
    assert "model.layers.1.mlp.gate_proj.weight has" in results[0].message
    assert "layer 1 mlp.gate_up_proj reads model.layers.0.mlp.gate_up_proj.weight" in results[1].message
