"""A graph whose outputs come out in another shape than they should: found in every backend, and named."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from blockexport.cli.main import main
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import ArtifactError
from blockexport.runtime.open import open_decoder
from tests.exported import export
from tests.output_cuts import CUTS, write_cut
from tests.small_models import small_config, small_weights, write_folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, config = tmp_path_factory.mktemp("shapes"), small_config("llama")
    write_folder(folder / "source", config, small_weights(config))
    export(open_checkpoint(str(folder / "source")), folder / "bundle", slots=32)
    return folder / "bundle"


def cut_bundle(bundle: Path, folder: Path, name: str) -> Path:
    shutil.copytree(bundle, folder)
    write_cut(bundle / "model.onnx", folder / "model.onnx", CUTS[name][0])
    return folder


@pytest.mark.parametrize("backend", ["onnxruntime", "replay"])
@pytest.mark.parametrize("name", CUTS)
def test_an_output_of_another_shape_is_the_artifacts_fault(
    bundle: Path, tmp_path: Path, name: str, backend: str
) -> None:
    decoder = open_decoder(cut_bundle(bundle, tmp_path / "cut", name), backend, threads=1, verify="nothing")
    decoder.reset(2)
    said = rf"output {re.escape(CUTS[name][1])} has the shape .* should have \[2, .*\], when 2 rows of 9 tokens"
    with pytest.raises(ArtifactError, match=said):
        decoder.prefill(torch.arange(18).view(2, 9))


def test_a_cache_that_is_cut_before_attention_reads_it(bundle: Path, tmp_path: Path) -> None:
    """No second run tells the shape: there attention fails first."""
    shutil.copytree(bundle, tmp_path / "cut")
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    at = next(i for i, node in enumerate(model.graph.node) if "present.0.key" in node.output)
    model.graph.node[at].output[0] = "whole"
    for name, values in {"from": [0], "to": [8], "axis": [2]}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(values), name))
    cut = onnx.helper.make_node("Slice", ["whole", "from", "to", "axis"], ["present.0.key"])
    model.graph.node.insert(at + 1, cut)
    onnx.save(model, tmp_path / "cut" / "model.onnx")
    decoder = open_decoder(tmp_path / "cut", threads=1, verify="nothing")
    with pytest.raises(ArtifactError, match=r"present.0.key has 8 entries along axis 2 and should have 32"):
        decoder.prefill(torch.arange(9)[None])


def test_it_fails_the_checks_whose_calls_show_it(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single row is right; a batch is not."""
    path = cut_bundle(bundle, tmp_path / "cut", "one row")
    assert main(["compare", str(path), "--json", "--check", "prefill", "--check", "batch"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert {name: check["verdict"] for name, check in checks.items()} == {"prefill": "pass", "batch": "fail"}
    assert "the output logits has the shape [1, " in checks["batch"]["message"]
