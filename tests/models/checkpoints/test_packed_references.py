"""Packed checkpoints are unpacked as compressed-tensors and GPTQModel themselves unpack them.

These want an environment of their own, which `make test-full` makes: newer versions of the first do not read orders of
inputs any more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from blockexport.models.checkpoints.safetensors_checkpoint import SafetensorsCheckpoint
from tests.packed_folders import Pack, write_packed

REFERENCES = Path(sys.prefix) / "references"
PROGRAM = Path(__file__).parent / "reference_unpacking.py"
PACKS = {
    "compressed-tensors int4 in order": Pack("compressed-tensors", 4, 32, order=True),
    "compressed-tensors int8 of channels": Pack("compressed-tensors", 8, None, scales=torch.bfloat16),
    "compressed-tensors with zero points": Pack("compressed-tensors", 4, 32, symmetric=False),
    "GPTQ int4 in order": Pack("gptq", 4, 32, order=True),
    "GPTQ int8 with zero points": Pack("gptq", 8, 32, symmetric=False),
    "GPTQ int4 with zero points, second form": Pack("gptq", 4, 32, order=True, symmetric=False, form="gptq_v2"),
    "AWQ": Pack("awq", 4, 32, symmetric=False),
}


@pytest.mark.full
@pytest.mark.parametrize("name", list(PACKS))
def test_the_tools_own_code_gives_the_same_values(tmp_path: Path, name: str) -> None:
    if not REFERENCES.is_dir():
        pytest.skip(f"{REFERENCES} has no reference code: `make {Path(sys.prefix).name}/.with-references` installs it")
    source = write_packed(tmp_path / "source", PACKS[name], num_hidden_layers=1)
    environment = {**os.environ, "PYTHONPATH": str(REFERENCES)}
    command = [sys.executable, "-P", str(PROGRAM), str(source.path), str(tmp_path / "reference.safetensors")]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    reference = load_file(tmp_path / "reference.safetensors")
    checkpoint = SafetensorsCheckpoint(source.path)
    assert reference.keys() == set(source.packed) and len(reference) == 7
    for tensor, wanted in reference.items():
        assert wanted.dtype == torch.float32 and torch.equal(checkpoint.read(tensor), wanted), tensor
        assert torch.equal(checkpoint.read_codes(tensor).dequantised(), wanted), tensor
