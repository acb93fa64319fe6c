"""Of several engines the one built for this GPU alone is taken, and one that is damaged stands in nobody's way."""

from __future__ import annotations

import logging
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from blockexport.export.bundle.manifest import read_manifest, write_manifest
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.precision import Precision
from blockexport.runtime.tensorrt import trt_decoder
from blockexport.runtime.tensorrt.trt_decoder import TensorRtDecoder
from blockexport.runtime.tensorrt.trt_engine_file import fitting_engines, whole_engines
from tests.export.tensorrt.made_up_engine import VERSION, add_made_up_engine, made_up_entry
from tests.exported import export, random_model

BACKEND = "tensorrt-rtx"
MANY, TWO = ("7.5", "8.6", "8.9", "12.0"), ("8.9", "12.1")


@pytest.fixture(scope="module")
def exported_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Engines for four compute capabilities, for two and for one; the names are in the other order."""
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    manifest = export(random_model(num_hidden_layers=1, layer_types=(), sliding_window=None), folder, Precision.FP16)
    for targets in (("8.9",), TWO, MANY, ("10.0",)):
        add_made_up_engine(folder, made_up_entry(manifest, *targets))
    return folder


@pytest.fixture
def bundle(exported_once: Path, tmp_path: Path) -> Path:
    """A bundle that a test may change."""
    shutil.copytree(exported_once, tmp_path / "a bundle")
    return tmp_path / "a bundle"


def file_of(*targets: str) -> str:
    return f"engines/{BACKEND}-{'-'.join('sm' + target.replace('.', '') for target in targets)}-fp16.engine"


def chosen(folder: Path, capability: str | None = "8.9", version: str = VERSION) -> str:
    """The name of the engine that is taken."""
    manifest = read_manifest(folder)
    fitting = fitting_engines(folder, manifest, BACKEND, capability)
    path, _ = next(whole_engines(folder, manifest, fitting, version))
    return path.relative_to(folder).as_posix()


def test_the_engine_for_this_gpu_alone_comes_first(bundle: Path) -> None:
    fitting = fitting_engines(bundle, read_manifest(bundle), BACKEND, "8.9")
    assert fitting == [file_of("8.9"), file_of(*TWO), file_of(*MANY)]
    assert sorted(fitting) != fitting
    assert chosen(bundle) == file_of("8.9")
    assert chosen(bundle, "12.1") == file_of(*TWO)
    assert chosen(bundle, "7.5") == file_of(*MANY)


def test_among_equals_the_one_for_most_rows_comes_first(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    name = file_of("8.6", "12.1")
    add_made_up_engine(bundle, made_up_entry(manifest, "8.6", "12.1", rows=3))
    add_made_up_engine(bundle, made_up_entry(manifest, "9.0", "12.1", rows=7))
    assert fitting_engines(bundle, read_manifest(bundle), BACKEND, "12.1") == [
        file_of("9.0", "12.1"),
        name,
        file_of(*TWO),
    ]


def test_an_engine_for_all_since_ampere_comes_last(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    add_made_up_engine(bundle, made_up_entry(manifest, "8.0", hardware="ampere-plus"))
    assert fitting_engines(bundle, read_manifest(bundle), BACKEND, "8.9")[-1] == file_of("8.0")
    assert chosen(bundle, "9.0") == file_of("8.0")


@pytest.mark.parametrize("harm", ["cut short", "missing", "of another version", "of other weights", "entry"])
def test_a_bad_engine_is_passed_over_with_a_warning(harm: str, bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = file_of("8.9")
    entry = made_up_entry(read_manifest(bundle))
    changes = {
        "of another version": asdict(replace(entry, version="1.6")),
        "of other weights": asdict(replace(entry, weights_digest="0")),
        "entry": {"backend": BACKEND},
    }
    if harm in changes:
        manifest = read_manifest(bundle)
        write_manifest(bundle, replace(manifest, engines={**manifest.engines, name: changes[harm]}))
    elif harm == "cut short":
        (bundle / name).write_bytes(b"short")
    else:
        (bundle / name).unlink()
    with caplog.at_level(logging.WARNING):
        assert chosen(bundle) == file_of(*TWO)
    (record,) = caplog.records
    assert name in record.getMessage()
    assert record.getMessage().endswith(f"{file_of(*TWO)} is used instead")


def test_where_all_are_bad_each_is_told_why(bundle: Path) -> None:
    (bundle / file_of("8.9")).unlink()
    (bundle / file_of(*TWO)).write_bytes(b"short")
    with pytest.raises(UsageError) as raised:
        chosen(bundle, version="1.6")
    told = str(raised.value)
    for name, why in (
        (("8.9",), "is missing"),
        (TWO, "has 5 bytes and"),
        (MANY, "was built by tensorrt-rtx 1.7 and 1.6"),
    ):
        assert f"{file_of(*name)} {why}" in told
    assert "blockexport trt '" in told  # commands can be pasted, whatever the bundle's name


def test_a_source_that_the_manifest_no_longer_lists(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    fitting = fitting_engines(bundle, manifest, BACKEND, "10.0")
    lacking = replace(manifest, files={n: file for n, file in manifest.files.items() if n != "rope.safetensors"})
    with pytest.raises(UsageError, match=r"was built from another rope\.safetensors"):
        next(whole_engines(bundle, lacking, fitting, VERSION))


def test_without_a_gpu_every_target_is_listed(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        version = VERSION

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(trt_decoder, "load_library", lambda _: Installed)
    with pytest.raises(
        NotJudgedError, match=r"are whole, .* capability 7\.5 or 8\.6 or 8\.9 or 10\.0 or 12\.0 or 12\.1 "
    ):
        TensorRtDecoder.open(bundle, read_manifest(bundle), BACKEND)
    (bundle / file_of(*MANY)).unlink()
    with pytest.raises(NotJudgedError, match=r"are whole, .* capability 8\.9 or 10\.0 or 12\.1 "):
        TensorRtDecoder.open(bundle, read_manifest(bundle), BACKEND)


def test_no_engine_for_this_gpu(bundle: Path) -> None:
    with pytest.raises(UsageError, match=r"capability 7\.5, 8\.6, 8\.9, 10\.0, 12\.0, 12\.1 and this GPU has 8\.0"):
        chosen(bundle, "8.0")
