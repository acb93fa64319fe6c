"""`blockexport diff`: what differs between two bundles is told, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockexport import diff_bundles
from blockexport.cli.main import main
from blockexport.export.bundle.manifest import Manifest, read_manifest, write_manifest
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint
from blockexport.models.precision import Precision
from blockexport.models.quantisation import quantisation_of
from tests.exported import EVERYTHING, export, random_model

CHANGED = "model.layers.1.mlp.up_proj.weight"


class Nudged(RandomCheckpoint):
    """One value of one matrix is other than in `random_model()`."""

    def read(self, name: str) -> torch.Tensor:
        values = super().read(name)
        if name == CHANGED:
            values[3, 5] += 0.5
        return values


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "bundle"
    export(random_model(), folder)
    return folder


def nudged() -> Checkpoint:
    return Nudged(EVERYTHING, seed=5, reference="tests", std=0.2)


def test_the_same(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    export(random_model(), other)
    assert main(["diff", str(made), str(other)]) == 0
    assert capsys.readouterr().out == f"{made} and {other} are the same\n"
    assert main(["diff", str(made), str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["values"] == []


def test_one_value_of_one_matrix(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    export(nudged(), other)
    found = diff_bundles(made, other)
    (tensor,) = found.tensors
    assert (tensor.name, tensor.form, tensor.unequal, tensor.count) == (CHANGED, None, 1, 44 * 24)
    assert tensor.largest == pytest.approx(0.5, rel=1e-6)
    assert tensor.relative == pytest.approx(0.5 / (0.2 * (44 * 24) ** 0.5), rel=0.1)
    assert found.graph is None and found.numerics is not None
    assert 1e-4 < found.numerics.rms <= found.numerics.largest < 10 and found.numerics.kl_mean > 0
    assert found.numerics.positions == 29 and found.numerics.floor is None
    assert main(["diff", str(made), str(other)]) == 1
    out = capsys.readouterr().out
    assert f"weights {CHANGED}: 1 of 1,056 values, by 0.5 at most" in out and "logits at 29 positions" in out
    assert main(["diff", str(made), str(other), "--max-memory", "1KB"]) == 1
    out = capsys.readouterr().out
    assert f"weights {CHANGED}: 1 of" in out and "memory to run, and --max-memory allows 1" in out


def test_another_precision_and_codes(made: Path, tmp_path: Path) -> None:
    export(random_model(), tmp_path / "half", Precision.FP16)
    found = diff_bundles(made, tmp_path / "half")
    names = {one.name for one in found.tensors}
    assert CHANGED in names and all("F32" in str(one.form) and "F16" in str(one.form) for one in found.tensors
                                    if not one.name.startswith("rope"))  # fmt: skip
    assert max(one.relative for one in found.tensors) < 1e-3
    assert found.graph is not None and found.numerics is not None and found.numerics.rms < 0.1
    export(random_model(), tmp_path / "codes", quantisation=quantisation_of("int4"))
    found = diff_bundles(made, tmp_path / "codes")
    assert CHANGED in found.only_first and any(name.endswith(".codes") for name in found.only_second)
    assert found.graph is not None and any("DequantizeLinear" in name for name in found.graph.added)


def test_another_graph(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(EVERYTHING, rms_norm_eps=1e-3)
    export(RandomCheckpoint(config, seed=5, reference="tests", std=0.2), tmp_path / "other")
    found = diff_bundles(made, tmp_path / "other")
    assert found.tensors == () and found.graph is not None and not found.graph.added and not found.graph.removed
    assert set(found.graph.changed.values()) == {"attribute epsilon"} and len(found.graph.changed) >= 7
    assert [(one.about, one.name, one.first, one.second) for one in found.values if one.about == "config"] == [
        ("config", "rms_norm_eps", 1e-5, 1e-3)
    ]
    assert main(["diff", str(made), str(tmp_path / "other")]) == 1
    assert "config rms_norm_eps: 1e-05 and 0.001" in capsys.readouterr().out


def versions(manifest: Manifest) -> Manifest:
    return replace(manifest, tools={**manifest.tools, "torch": "9.9"})


def engine(manifest: Manifest) -> Manifest:
    return replace(manifest, engines={"engines/a.engine": {"version": "10"}})


def a_file_less(manifest: Manifest) -> Manifest:
    name = next(name for name in manifest.files if name.endswith("config.json"))
    return replace(manifest, files={one: entry for one, entry in manifest.files.items() if one != name})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (versions, 'version torch: "9.9" and "'),
        (engine, "engine engines/a.engine: only in the first"),
        (a_file_less, "config.json: only in the second"),
        (lambda m: replace(m, source=replace(m.source, reference="x")), "manifest source: {"),
    ],
)
def test_what_the_manifest_says(
    change: Callable[[Manifest], Manifest], words: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copytree(made, tmp_path / "other"))
    write_manifest(other, change(read_manifest(made)))
    assert main(["diff", str(other), str(made)]) == 1
    out = capsys.readouterr().out
    assert words in out and "logits" not in out


def test_the_noise_is_that_of_the_reports(judged_stories: Path, tmp_path: Path) -> None:
    assert main(["redeclare", str(judged_stories), "-M", "400", "-o", str(tmp_path / "b"), "--quiet"]) == 0
    found = diff_bundles(judged_stories, tmp_path / "b")
    assert found.numerics is not None and found.numerics.floor is not None
    assert 0 < found.numerics.floor < 1e-3 and found.numerics.rms < 2 * found.numerics.floor
    assert found.numerics.same_token == 1 and found.tensors == () and found.graph is not None


def test_what_cannot_be_compared_is_said(made: Path, tmp_path: Path) -> None:
    export(random_model(), tmp_path / "headless", headless=True)
    found = diff_bundles(made, tmp_path / "headless")
    assert found.numerics is None and "there are no tokens and logits" in str(found.not_compared)
    export(random_model(vocab_size=103), tmp_path / "more")
    assert "vocabularies have 101 and 103" in str(diff_bundles(made, tmp_path / "more").not_compared)
    assert main(["diff", str(made), str(tmp_path)]) == 2
