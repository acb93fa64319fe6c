"""Weights of a stranger, of the same size and names, are told from a bundle's own when a decoder is opened."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import onnx
import pytest

from blockexport.cli.main import main
from blockexport.export.bundle.file_check import check_file, file_entry, sampled_sha256_of
from blockexport.export.bundle.manifest import read_manifest
from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from blockexport.runtime.open import open_decoder
from tests.exported import EVERYTHING, export, random_model
from tests.support import shared_path

PAGE = 4096


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "bundle"
    export(random_model(), folder)
    return folder


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stranger") / "bundle"
    export(RandomCheckpoint(EVERYTHING, seed=6, reference="tests", std=0.2), folder)
    return folder


@pytest.mark.parametrize("backend", ["onnxruntime", "replay"])
def test_weights_of_a_stranger(own: Path, stranger: Path, tmp_path: Path, backend: str) -> None:
    bundle = Path(shutil.copytree(own, tmp_path / "bundle"))
    shutil.copyfile(stranger / "model.safetensors", bundle / "model.safetensors")
    assert (bundle / "model.safetensors").stat().st_size == (own / "model.safetensors").stat().st_size
    for verify in ("sample", "whole"):
        with pytest.raises(UsageError, match=r"model\.safetensors has the SHA-256 .* it is another file"):
            open_decoder(bundle, backend, verify=verify)
    open_decoder(bundle, backend, verify="nothing")
    open_decoder(own, backend, verify="whole")


def test_a_graph_with_another_epsilon(own: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(own, tmp_path / "bundle"))
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    norm = next(node for node in model.graph.node if node.op_type == "RMSNormalization")
    next(attribute for attribute in norm.attribute if attribute.name == "epsilon").f = 1e-3
    onnx.save(model, bundle / "model.onnx")
    with pytest.raises(UsageError, match=r"model\.onnx has the SHA-256"):
        open_decoder(bundle)


def test_rope_tables_of_another_base(own: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(own, tmp_path / "bundle"))
    export(random_model(rope_theta=2e4), tmp_path / "other")
    shutil.copyfile(tmp_path / "other/rope.safetensors", bundle / "rope.safetensors")
    with pytest.raises(UsageError, match=r"rope\.safetensors has the SHA-256"):
        open_decoder(bundle)


def test_generate_reads_all_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bit between the sampled pages is seen by --verify-weights alone."""
    big = random_model(vocab_size=6000, hidden_size=80)
    manifest = export(big, tmp_path / "bundle")
    path, listed = tmp_path / "bundle/model.safetensors", manifest.files["model.safetensors"]
    assert path.stat().st_size > 300 * PAGE
    for page in range(16, 300):
        spoil(path, page * PAGE + 100)
        if sampled_sha256_of(path) == listed.sampled_sha256:
            break
        spoil(path, page * PAGE + 100)
    open_decoder(tmp_path / "bundle")
    with pytest.raises(UsageError, match="it is another file"):
        open_decoder(tmp_path / "bundle", verify="whole")
    shutil.copyfile(shared_path("models/stories260K/tokenizer.json"), tmp_path / "bundle/tokenizer.json")
    command = ["generate", str(tmp_path / "bundle"), "x", "-n", "1"]
    assert main(command) == 0
    assert main([*command, "--verify-weights"]) == 2
    assert "it is another file" in capsys.readouterr().err


def spoil(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("size", [0, 1, PAGE, 256 * PAGE - 1, 256 * PAGE])
def test_a_small_file_is_sampled_whole(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(content := os.urandom(size))
    assert sampled_sha256_of(tmp_path / "file") == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("size", [256 * PAGE + 1, 1000 * PAGE + 17, 5000 * PAGE])
def test_header_and_end_of_a_large_file_are_in_the_sample(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    listed = file_entry(path)
    for at in (0, 16 * PAGE - 1, size - 1):
        spoil(path, at)
        with pytest.raises(UsageError, match="in its sampled pages"):
            check_file(path, listed, whole=False)
        spoil(path, at)
    check_file(path, listed, whole=True)
    missed = []
    for start in range(0, size, max(1, size // 50)):  # an overwritten fiftieth never goes unseen
        with path.open("r+b") as file:
            file.seek(start)
            before = file.read(size // 50)
            file.seek(start)
            file.write(bytes(len(before)))
        missed += [start] if sampled_sha256_of(path) == listed.sampled_sha256 and len(before) > 24 * PAGE else []
        with path.open("r+b") as file:
            file.seek(start)
            file.write(before)
    assert missed == []


@pytest.mark.parametrize(
    ("precision", "ends"),
    [(Precision.FP32, {}), (Precision.FP16, {"headless": True}), (Precision.BF16, {"last_logits_only": True})],
)
def test_opset_and_ir_version_are_on_record(precision: Precision, ends: dict[str, bool], tmp_path: Path) -> None:
    export(random_model(num_hidden_layers=1, layer_types=("full_attention",)), tmp_path, precision, **ends)
    manifest, listed = read_manifest(tmp_path), json.loads((tmp_path / "manifest.json").read_text())
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    assert (manifest.opset, manifest.ir_version) == (model.opset_import[0].version, model.ir_version) == (24, 11)
    assert (listed["opset"], listed["ir_version"], manifest.precision) == (24, 11, precision)
