"""An engine's file and entry are looked at before TensorRT opens it: one message for each thing that can be wrong."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockexport.export.bundle.engine_entry import entry_of
from blockexport.export.bundle.manifest import Manifest, read_manifest, write_manifest
from blockexport.export.tensorrt.trt_engine import check_sources
from blockexport.export.tensorrt.trt_network import make_profiles
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.precision import Precision
from blockexport.runtime.open import open_decoder
from blockexport.runtime.tensorrt.trt_engine_file import check_engine, fitting_engines, serves, whole_engines
from tests.export.tensorrt.trt_support import add_engine, rtx
from tests.exported import export, random_model

NAME = "engines/tensorrt-rtx-sm89-sm120-fp16.engine"


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small bundle with an engine in it."""
    folder = tmp_path_factory.mktemp("built") / "bundle"
    model = random_model(num_hidden_layers=1, layer_types=(), sliding_window=None, head_dim=64)
    manifest = export(model, folder, Precision.FP16)
    adapter = rtx()
    name, _ = add_engine(folder, manifest, adapter, adapter.targets(["12.0", "8.9"]), make_profiles(2, 8))
    assert name == NAME
    return folder


@pytest.fixture
def bundle(built_once: Path, tmp_path: Path) -> tuple[Path, Manifest]:
    """A copy of it that a test may spoil."""
    folder = tmp_path / "bundle"
    shutil.copytree(built_once, folder)
    return folder, read_manifest(folder)


def test_the_entry_says_what_a_user_has_to_know(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    assert read_manifest(folder) == manifest
    entry, file = entry_of(manifest, NAME), manifest.files[NAME]
    assert (entry.backend, entry.version) == ("tensorrt-rtx", rtx().version)
    assert entry.compute_capabilities == ("8.9", "12.0")
    assert entry.precision is Precision.FP16
    assert entry.profiles == make_profiles(2, 8)
    assert entry.inputs == manifest.inputs
    assert [port.aliases for port in entry.outputs] == [None, "past_key_values.0.key", "past_key_values.0.value"]
    assert entry.weights_digest == manifest.weights_digest
    assert entry.audit["cache_updates"] == 2
    assert entry.rebuild.startswith("the same weights, layers, kernels and length")
    assert file.bytes == (folder / NAME).stat().st_size
    assert file.made_from == {
        name: manifest.files[name].sha256 for name in ("model.onnx", "model.safetensors", "rope.safetensors")
    }
    assert sorted(path.name for path in (folder / "engines").iterdir()) == [Path(NAME).name]


def test_a_whole_engine_passes_and_lacks_only_the_gpu(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    fitting = fitting_engines(folder, manifest, "tensorrt-rtx", "12.0")
    assert [path for path, _ in whole_engines(folder, manifest, fitting, rtx().version)] == [folder / NAME]
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(NotJudgedError, match=r"there is no GPU here .* compute capability 8\.9 or 12\.0"):
        open_decoder(folder, "tensorrt-rtx")


def test_no_engine_for_the_backend_or_the_gpu(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    with pytest.raises(UsageError, match=r"holds no tensorrt engine: blockexport trt .* --backend tensorrt builds one"):
        open_decoder(folder, "tensorrt")
    with pytest.raises(UsageError, match=r"for compute capability 8\.9, 12\.0 and this GPU has 8\.6: .* 8\.6 builds"):
        fitting_engines(folder, manifest, "tensorrt-rtx", "8.6")
    entry = entry_of(manifest, NAME)
    assert serves(entry, "8.9")
    assert not serves(entry, "9.0")
    assert serves(replace(entry, options={"hardware_compatibility": "ampere-plus"}), "9.0")
    assert not serves(replace(entry, options={"hardware_compatibility": "ampere-plus"}), "7.5")


def test_another_number_of_slots_is_refused(bundle: tuple[Path, Manifest]) -> None:
    with pytest.raises(UsageError, match="has the 29 slots it was built with, not 16"):
        open_decoder(bundle[0], "tensorrt-rtx", max_sequence_length=16)


def test_a_damaged_file_is_refused(bundle: tuple[Path, Manifest]) -> None:
    folder, _ = bundle
    whole = (folder / NAME).read_bytes()
    again = r"blockexport trt .* --compute-capability 8\.9 --compute-capability 12\.0 builds it again"
    (folder / NAME).write_bytes(whole[:-1])
    with pytest.raises(UsageError, match=rf"has {len(whole) - 1} bytes and the manifest says {len(whole)}: {again}"):
        open_decoder(folder, "tensorrt-rtx")
    (folder / NAME).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UsageError, match=rf"has the SHA-256 .* it is another file.*: {again}"):
        open_decoder(folder, "tensorrt-rtx")
    (folder / NAME).unlink()
    with pytest.raises(UsageError, match=rf"is missing, and the manifest lists it: {again}"):
        open_decoder(folder, "tensorrt-rtx")


def test_an_engine_of_older_weights_or_another_version_is_refused(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    entry = entry_of(manifest, NAME)
    weights = replace(manifest.files["model.safetensors"], sha256="0" * 64)
    newer = replace(manifest, files={**manifest.files, "model.safetensors": weights})
    with pytest.raises(UsageError, match=r"was built from another model\.safetensors"):
        check_engine(folder, newer, NAME, entry, entry.version)
    with pytest.raises(UsageError, match=rf"built by tensorrt-rtx {entry.version} and 1\.9\.0 is installed"):
        check_engine(folder, manifest, NAME, entry, "1.9.0")
    lasting = replace(entry, options={"version_compatible": True})
    assert check_engine(folder, manifest, NAME, lasting, "99.0") == folder / NAME
    with pytest.raises(UsageError, match="which does not load it"):
        check_engine(folder, manifest, NAME, lasting, "0.1")


def test_a_damaged_entry_is_refused(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    write_manifest(folder, replace(manifest, engines={NAME: {"backend": "tensorrt-rtx"}}))
    with pytest.raises(UsageError, match=rf"entry of {NAME} is damaged"):
        open_decoder(folder, "tensorrt-rtx")


def test_a_changed_source_is_not_built_from(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    check_sources(folder, manifest)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    with pytest.raises(UsageError, match=r"model\.safetensors has the SHA-256 .* it is another file"):
        check_sources(folder, manifest)
