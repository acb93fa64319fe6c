"""`blockexport redeclare`: another M for other runtimes, all or nothing."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_genai as og
import pytest
import torch

from blockexport.cli.main import main
from blockexport.export.bundle.manifest import read_manifest
from blockexport.runtime.open import open_decoder
from blockexport.runtime.selftest import check_files
from tests.support import shared_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """stories260K, judged, with 96 slots; its RoPE table has 512 rows."""
    folder = tmp_path_factory.mktemp("made") / "bundle"
    assert main(["onnx", str(shared_path("models/stories260K")), "-o", str(folder), "-M", "96", "--quiet"]) == 0
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def runs_with(bundle: Path, slots: int) -> None:
    """ONNX Runtime and onnxruntime-genai fill `slots` slots from the file as it is."""
    session = ort.InferenceSession(bundle / "model.onnx")
    shapes = {value.name: value.shape for value in session.get_inputs()}
    assert {shape[2] for name, shape in shapes.items() if name.startswith("past")} == {slots}
    feeds = {name: np.zeros([1, *shape[1:]], np.float32) for name, shape in shapes.items() if name.startswith("past")}
    ids = np.arange(slots, dtype=np.int64)[None]
    logits = session.run(["logits"], {"input_ids": ids % 512, "position_ids": ids, **feeds})[0]
    ours = open_decoder(bundle).prefill(torch.from_numpy(ids % 512))
    assert np.abs(logits - ours.numpy()).max() < 1e-4
    model = og.Model(str(bundle))
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=slots)
    generator = og.Generator(model, parameters)
    generator.append_tokens(ids[:, : slots - 1].astype(np.int32) % 512)
    generator.generate_next_token()


@pytest.mark.parametrize("slots", [300, 512])
def test_a_copy_with_more_slots(made: Path, tmp_path: Path, slots: int) -> None:
    before = snapshot(made)
    assert main(["redeclare", str(made), "-M", str(slots), "-o", str(tmp_path / "copy"), "--quiet"]) == 0
    assert snapshot(made) == before
    assert main(["selftest", str(tmp_path / "copy"), "--quiet"]) == 0
    runs_with(tmp_path / "copy", slots)
    changed = {"model.onnx", "genai_config.json", "manifest.json", "sbom.cdx.json"}
    after = snapshot(tmp_path / "copy")
    assert {name for name in before if after.get(name) != before[name]} == changed | {
        name for name in before if name.startswith("parity/")
    }
    assert main(["compare", str(tmp_path / "copy"), "--check", "last-slot", "--quiet"]) == 0


def test_in_place_and_back_again(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = Path(shutil.copytree(made, tmp_path / "bundle"))
    assert main(["redeclare", str(bundle), "-M", "200"]) == 0
    assert "dropped, because they were made for another M: parity/report.html" in capsys.readouterr().err
    manifest = read_manifest(bundle)
    check_files(bundle, manifest)
    assert manifest.max_sequence_length == 200
    runs_with(bundle, 200)
    assert main(["redeclare", str(bundle), "-M", "96", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == []
    before = snapshot(made)
    for name, content in snapshot(bundle).items():
        if name not in ("model.onnx", "manifest.json", "sbom.cdx.json"):
            assert content == before[name], name


def test_the_m_that_a_bundle_has_keeps_its_report(made: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(made, tmp_path / "bundle"))
    slots = str(read_manifest(bundle).max_sequence_length)
    left = bundle / f".addition.{platform.node()}-{2**22 + 1}-01234567.partial"  # of one who was killed
    left.mkdir()
    (left / "model.onnx").write_bytes(b"half")
    assert main(["redeclare", str(bundle), "-M", slots, "--quiet"]) == 0
    assert snapshot(bundle) == snapshot(made)
    assert main(["redeclare", str(bundle), "-M", slots, "-o", str(tmp_path / "copy"), "--quiet"]) == 0
    copied = snapshot(tmp_path / "copy")
    assert {name for name in snapshot(made) if name.startswith("parity/")} <= set(copied)
    assert main(["selftest", str(tmp_path / "copy"), "--quiet"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["-M", "513"],
            "513 is outside 1..512, the rows of this file's RoPE table: choose at most 512, or export again with "
            "--max-sequence-length 513 --beyond-trained-range (the model's own range is 512 positions)",
        ),
        (["-M", "5"], "5 is less than the 96 slots that the bundle's golden vectors need"),
        (["-M", "-1"], "max_sequence_length is -1, and has to be a whole number of at least 1\n"),
        (["-M", "200", "-o", "INSIDE"], "choose a place outside of it"),
    ],
)
def test_what_is_refused_changes_nothing(
    made: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = Path(shutil.copytree(made, tmp_path / "bundle"))
    before = snapshot(tmp_path)
    given = [str(bundle / "new") if argument == "INSIDE" else argument for argument in arguments]
    assert main(["redeclare", str(bundle), *given]) == 2
    assert message in capsys.readouterr().err
    assert snapshot(tmp_path) == before


def test_a_changed_file_is_not_sealed_anew(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = Path(shutil.copytree(made, tmp_path / "bundle"))
    content = bytearray((bundle / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (bundle / "model.safetensors").write_bytes(content)
    before = snapshot(tmp_path)
    assert main(["redeclare", str(bundle), "-M", "200"]) == 2
    assert "it is another file" in capsys.readouterr().err
    assert snapshot(tmp_path) == before
