"""A merged checkpoint has peft's weights and gives peft's logits at the floor, and so does its exported file.

The floor is peft's own error in float32, against itself in float64. What peft computes with the adapter beside the
model is what was trained. Of a model whose ends share a table, its merged model is another one, of which it warns. It
wants an environment of its own, which `make test-full` makes.
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
from blockexport.compare.core.tolerances import MAX_FACTOR, RMS_FACTOR
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.runtime.decoder import Decoder
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


def assert_at_the_floor(decoder: Decoder, folder: Path) -> None:
    """No further from peft in float64 than peft in float32 is: as a whole, and at each position."""
    peft = load_file(folder / "peft.safetensors")
    decoder.reset(batch_size=len(IDS))
    error_BSV, errors_NBSV = decoder.prefill(IDS) - peft["logits"], peft["errors"]
    whole = rms(error_BSV) / max(map(rms, errors_NBSV))
    position = (error_BSV.abs().amax(-1) / errors_NBSV.abs().amax((0, -1))).max().item()
    # The largest of all cases: 1.2 and 4.
    assert whole < RMS_FACTOR.value and position < MAX_FACTOR.value, (whole, position)


def rms(values: torch.Tensor) -> float:
    return values.square().mean().sqrt().item()


@pytest.mark.parametrize("name", list(CASES))
def test_weights_and_logits_are_those_of_peft(made: Path, name: str) -> None:
    checkpoint = open_checkpoint(str(made / name / "base"), lora=made / name / "adapter")
    if not CASES[name].tied:
        theirs = open_checkpoint(str(made / name / "merged"))
        for tensor in checkpoint.entries:
            torch.testing.assert_close(checkpoint.read(tensor).float(), theirs.read(tensor), msg=tensor)
    decoder = EagerDecoder(load_model(checkpoint, torch.float32, 32), 32)
    assert_at_the_floor(decoder, made / name)
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
    assert_at_the_floor(open_decoder(tmp_path / "bundle"), made / name)
