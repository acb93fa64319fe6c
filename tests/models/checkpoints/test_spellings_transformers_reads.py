"""Spellings that transformers itself opens: the same folder gives the same logits in both readers, in every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from blockexport.cli.main import main
from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from tests.support import faults_script
from tests.transformers_models import FAMILIES, make_model

LENGTH = 40


def both_readers_agree(folder: Path) -> None:
    ids_BS = torch.randint(0, 97, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected = theirs(ids_BS).logits
    assert expected.std() > 1, "a model whose logits are all alike proves nothing"
    checkpoint = open_checkpoint(str(folder))
    past = empty_cache(checkpoint.config, 2, LENGTH, torch.float32)
    logits = load_model(checkpoint, torch.float32, LENGTH)(ids_BS, torch.arange(LENGTH).expand(ids_BS.shape), past)[0]
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("spelling", ["without the prefix", "head alone"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, spelling: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model: Any = make_model(family, tied=True).to(dtype)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights, prefix = load_file(file), f"{model.base_model_prefix}."
    if spelling == "head alone":
        table = next(
            name for name, values in weights.items() if values.shape == model.get_input_embeddings().weight.shape
        )
        weights["lm_head.weight"] = weights.pop(table)
    else:
        weights = {name.removeprefix(prefix): values for name, values in weights.items()}
    save_file(weights, file, metadata={"format": "pt"})
    both_readers_agree(tmp_path)


@pytest.mark.parametrize("name", ["flat-names", "head-only", "index-of-one"])
def test_inputs_that_were_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults_script().CASES[name][0](tmp_path / "model")
    both_readers_agree(tmp_path / "model")
    assert main(["onnx", str(tmp_path / "model"), "-o", str(tmp_path / "bundle")]) == 0
    said = capsys.readouterr().err
    assert {"flat-names": "have other names", "head-only": "is stored once", "index-of-one": "note: "}[name] in said


def test_an_input_that_two_readers_take_differently(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults_script().CASES["nested-rope"][0](tmp_path / "model")
    assert main(["onnx", str(tmp_path / "model"), "-o", str(tmp_path / "bundle")]) == 2
    assert "parameters per layer type (full_attention)" in capsys.readouterr().err
