"""`blockexport onnx --calibrate`: the model loses less on another text, and the file is held against the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from blockexport.bundle_export import export_bundle
from blockexport.cli.main import main
from blockexport.compare.core.passage import PASSAGE
from blockexport.compare.judged_bundle import as_stored
from blockexport.export.bundle.manifest import read_manifest
from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
from tests.compare.static_judge import spoilt
from tests.support import shared_path

SLOTS = 256
MATRIX = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model calibrated on Shakespeare."""
    folder = tmp_path_factory.mktemp("calibrated") / "bundle"
    model, text = shared_path("models/stories260K"), shared_path("text/tinyshakespeare_4k.txt")
    options = ["--quantize", "int4", "--calibrate", str(text), "--max-sequence-length", str(SLOTS)]
    assert main(["onnx", str(model), "-o", str(folder), "--quiet", "--no-compare", *options]) == 0
    return folder


def _log_probabilities(folder: Path | None) -> torch.Tensor:
    """Of the beginning of another text, by the checkpoint or by the weights of a bundle."""
    source = shared_path("models/stories260K")
    checkpoint = open_checkpoint(str(source))
    ids = torch.tensor([BundleTokenizer(source).encode(PASSAGE)[:SLOTS]])
    if folder is not None:
        checkpoint, _ = as_stored(checkpoint, folder, read_manifest(folder))
    model = load_model(checkpoint, torch.float32, SLOTS)
    with torch.inference_mode():
        past = empty_cache(model.config, 1, SLOTS, torch.float32)
        logits_1SV: torch.Tensor = model(ids, torch.arange(SLOTS)[None], past)[0]
    return logits_1SV[0].double().log_softmax(-1)


def test_the_model_loses_less_on_another_text(calibrated: Path, tmp_path: Path) -> None:
    model = shared_path("models/stories260K")
    export_bundle(model, tmp_path / "plain", quantize="int4", max_sequence_length=SLOTS, compare=False)
    wanted_SV = _log_probabilities(None)
    lost, less = (
        float((wanted_SV.exp() * (wanted_SV - _log_probabilities(folder))).sum(-1).mean())
        for folder in (tmp_path / "plain", calibrated)
    )
    assert 0 < less < 0.9 * lost


def test_the_manifest_says_what_it_was_calibrated_on(calibrated: Path, tmp_path: Path) -> None:
    quantisation = read_manifest(calibrated).quantisation
    assert quantisation is not None and quantisation.calibration is not None
    other = shared_path("text/classics.txt")
    made = export_bundle(
        shared_path("models/stories260K"), tmp_path / "other", quantize="int4", calibrate=other, compare=False
    )
    assert made.manifest.quantisation is not None
    assert made.manifest.quantisation.calibration not in (None, quantisation.calibration)


def test_it_is_judged_and_a_code_further_off_than_beside_the_nearest_is_seen(
    calibrated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(calibrated), "--json", "--check", "parameters", "--check", "prefill"]) == 0
    messages = [check["message"] for check in json.loads(capsys.readouterr().out)["checks"]]
    assert any("which are calibrated, those nearest to its values or beside them" in said for said in messages)
    changes = {
        "codes": lambda codes: codes.index_put((torch.tensor(77),), codes[77] ^ 4),
        "scales": lambda scales: scales.index_put((torch.tensor(1), torch.tensor(9)), scales[1, 9] / 2),
    }
    for part, change in changes.items():
        bad = spoilt(calibrated, tmp_path / part, "model.safetensors", {f"{MATRIX}.{part}": change})
        assert main(["compare", str(bad), "--json", "--check", "parameters", "--no-explain"]) == 1
        (check,) = json.loads(capsys.readouterr().out)["checks"]
        assert f"{MATRIX} has another code than the nearest or one beside it" in check["message"]


def test_a_grid_beyond_the_reach_of_a_calibrated_matrix_is_seen(
    calibrated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values_KN = open_checkpoint(str(shared_path("models/stories260K"))).read(MATRIX).T
    scale_1N = (values_KN.abs().amax(0, keepdim=True) / 4).half()  # the largest value of some block 4 steps away
    codes = (values_KN / scale_1N.float()).round().clamp(-8, 7).to(torch.int8).reshape(-1).view(torch.uint8)
    packed = (codes[0::2] & 15) | (codes[1::2] << 4)
    changes = {
        f"{MATRIX}.codes": lambda _: packed,
        f"{MATRIX}.scales": lambda scales: scale_1N.expand(scales.shape).contiguous(),
    }
    bad = spoilt(calibrated, tmp_path / "bad", "model.safetensors", changes)
    assert main(["compare", str(bad), "--json", "--check", "parameters", "--no-explain"]) == 1
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert f"{MATRIX} has scales that do not fit" in check["message"]


def test_a_text_too_short_to_calibrate_on_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "short.txt"
    text.write_text("Once upon a time there was a cat. " * 4)
    model = str(shared_path("models/stories260K"))
    assert main(["onnx", model, "-o", str(tmp_path / "new"), "--quantize", "int4", "--calibrate", str(text)]) == 2
    assert "short.txt is a text of " in (said := capsys.readouterr().err) and "at least 512 tell what" in said
    assert list(tmp_path.iterdir()) == [text]
