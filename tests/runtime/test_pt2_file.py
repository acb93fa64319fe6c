"""A bundle's model.pt2 that is damaged, or another model's, is refused when it is opened, in one message."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockexport.export.bundle.manifest import read_manifest, write_manifest
from blockexport.models.errors import UsageError
from blockexport.models.interface import Ends, Interface
from blockexport.models.precision import Precision
from blockexport.runtime.open import open_decoder
from tests.exported import add_program, export, list_file, random_model

KINDS: dict[str, dict[str, bool]] = {"plain": {}, "headless": {"headless": True}}


def make(folder: Path, kind: str, **changes: object) -> None:
    checkpoint = random_model(**{"num_hidden_layers": 1, "layer_types": (), **changes})
    export(checkpoint, folder, Precision.FP32, **KINDS[kind])
    add_program(checkpoint, Interface(checkpoint.config, Precision.FP32.element, 29, Ends.of(**KINDS[kind])), folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of each kind, and one of a model with a smaller vocabulary."""
    folder = tmp_path_factory.mktemp("pt2")
    for kind in KINDS:
        make(folder / kind, kind)
    make(folder / "smaller", "plain", vocab_size=100)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_opens(made: Path, kind: str) -> None:
    decoder = open_decoder(made / kind, "pt2", max_sequence_length=13)
    inputs = torch.zeros(1, 5, 24) if kind == "headless" else torch.arange(5)[None]
    assert decoder.prefill(inputs).shape == (1, 5, 24 if kind == "headless" else 101)


def other(name: str) -> Callable[[Path], object]:
    return lambda bundle: shutil.copy(bundle.parent / name / "model.pt2", bundle)


def cut(bundle: Path) -> None:
    os.truncate(bundle / "model.pt2", (bundle / "model.pt2").stat().st_size - 100)


def no_archive(bundle: Path) -> None:
    (bundle / "model.pt2").write_text("no archive")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (other("headless"), "(float32 [any, any, 24]) among its inputs, and the manifest lists input_ids (int64"),
        (other("smaller"), "(float32 [any, any, 100]) among its outputs, and the manifest lists logits"),
        (cut, "does not load"),
        (no_archive, "does not load"),
    ],
)
def test_another_or_a_damaged_program(
    made: Path,
    tmp_path: Path,
    spoil: Callable[[Path], object],
    message: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    shutil.copytree(made, tmp_path / "copy")
    bundle = tmp_path / "copy" / "plain"
    spoil(bundle)
    list_file(bundle, "model.pt2")
    with pytest.raises(UsageError) as caught:
        open_decoder(bundle, "pt2")
    said = str(caught.value)
    assert message in said and str(bundle / "model.pt2") in said
    assert (
        said.endswith(". Copy the whole bundle again, or export it again with --pt2") and "warnings above" not in said
    )
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_one_that_is_not_the_manifests_is_not_unpickled(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(made / "plain", bundle)
    open_decoder(bundle, "pt2")

    def loaded(path: Path) -> None:
        raise AssertionError("it was unpickled")

    monkeypatch.setattr("torch.export.load", loaded)
    content = bytearray((bundle / "model.pt2").read_bytes())
    content[len(content) // 2] ^= 1  # most likely in none of the sampled pages
    (bundle / "model.pt2").write_bytes(content)
    with pytest.raises(UsageError, match=r"model\.pt2 has the SHA-256"):
        open_decoder(bundle, "pt2")
    manifest = read_manifest(bundle)
    write_manifest(bundle, replace(manifest, files={n: e for n, e in manifest.files.items() if n != "model.pt2"}))
    with pytest.raises(UsageError, match=r"model\.pt2 is not in the manifest"):
        open_decoder(bundle, "pt2", verify="nothing")
