"""A merged checkpoint has peft's weights and gives peft's logits, and so does its exported file.

What peft computes with the adapter beside the model is what was trained. Of a model whose ends share a table, its
merged model is another one, of which it warns. It wants an environment of its own, which `make test-full` makes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from blockexport.bundle_export import export_bundle
from blockexport.compare.audits.merged_weights import merged_weights
from blockexport.compare.core.check import Verdict
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.open import open_decoder
from tests.models.checkpoints.peft_adapters import CASES, IDS
from tests.support import REPOSITORY

PEFT = Path(sys.prefix) / "peft-reference"
PROGRAM = Path(__file__).parent / "peft_adapters.py"

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PEFT.is_dir():
        pytest.skip(f"{PEFT} has no peft: `make {Path(sys.prefix).name}/.with-references` installs it")
    folder = tmp_path_factory.mktemp("peft")
    environment = {**os.environ, "PYTHONPATH": f"{PEFT}{os.pathsep}{REPOSITORY}", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-P", str(PROGRAM), str(folder)], check=True, env=environment, cwd=folder)
    return folder


@pytest.mark.parametrize("name", list(CASES))
def test_weights_and_logits_are_those_of_peft(made: Path, name: str) -> None:
    logits = load_file(made / name / "peft.safetensors")["logits"]
    checkpoint = open_checkpoint(str(made / name / "base"), lora=made / name / "adapter")
    if not CASES[name].tied:
        theirs = open_checkpoint(str(made / name / "merged"))
        for tensor in checkpoint.entries:
            torch.testing.assert_close(checkpoint.read(tensor).float(), theirs.read(tensor), msg=tensor)
    decoder = EagerDecoder(load_model(checkpoint, torch.float32, 32), 32)
    decoder.reset(batch_size=len(IDS))
    torch.testing.assert_close(decoder.prefill(IDS), logits, rtol=1e-5, atol=3e-4)
    audit = merged_weights(checkpoint)
    assert audit is not None
    changed = [tensor for tensor in checkpoint.entries if audit.changes(tensor)]
    assert changed and all(audit.fault(tensor, checkpoint.read(tensor)) is None for tensor in changed)


@pytest.mark.parametrize("name", list(CASES))
def test_the_exported_file_gives_the_logits_of_peft(made: Path, tmp_path: Path, name: str) -> None:
    exported = export_bundle(
        made / name / "base", tmp_path / "bundle", lora=made / name / "adapter", max_sequence_length=64
    )
    assert exported.report is not None and exported.report.verdict is Verdict.PASS
    logits = load_file(made / name / "peft.safetensors")["logits"]
    decoder = open_decoder(tmp_path / "bundle")
    decoder.reset(batch_size=len(IDS))
    torch.testing.assert_close(decoder.prefill(IDS), logits, rtol=1e-5, atol=3e-4)
