"""The weight check's own conversion: every pattern of 16 bits, ties, the ends of each type, and independence."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from blockexport.compare.audits.expected_values import rounded_bits
from blockexport.compare.audits.weight_difference import same_values
from blockexport.export.weights import weight_files
from blockexport.models.checkpoints.weight_values import TensorLoss
from blockexport.models.precision import Precision
from tests.exported import EVERYTHING, export, gainful
from tests.support import REPOSITORY

TYPES = (torch.float32, torch.float16, torch.bfloat16)


def patterns(dtype: torch.dtype) -> torch.Tensor:
    """Finite values: all of a 16-bit type; of float32, random ones, ties to even from both sides, and the ends."""
    if dtype != torch.float32:
        values = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
        return values[values.isfinite()]
    generator = random.Random(7)
    bits = [generator.getrandbits(32) for _ in range(50_000)]
    bits += [high << 16 | low for high in range(0, 1 << 16, 7) for low in (0x7FFF, 0x8000, 0x8001)]  # bfloat16's ties
    bits += [high << 13 | low for high in range(0, 1 << 19, 61) for low in (0x0FFF, 0x1000, 0x1001)]  # float16's ties
    values = torch.from_numpy(np.array(bits, np.uint32).view(np.float32).copy())
    return values[values.isfinite()]


@pytest.mark.parametrize("source", TYPES, ids=str)
@pytest.mark.parametrize("target", TYPES, ids=str)
def test_it_rounds_as_torch_does(source: torch.dtype, target: torch.dtype) -> None:
    values = patterns(source)
    whole = torch.int32 if target == torch.float32 else torch.int16
    wanted = values.to(target).view(whole).numpy()
    assert np.array_equal(rounded_bits(values, target).view(wanted.dtype), wanted)


@pytest.mark.parametrize(
    ("value", "target", "bits"),
    [
        (1.0, torch.bfloat16, 0x3F80),
        (1.00390625, torch.bfloat16, 0x3F80),  # half way, and even below
        (1.01171875, torch.bfloat16, 0x3F82),  # half way, and even above
        (-0.0, torch.bfloat16, 0x8000),
        (65519.0, torch.float16, 0x7BFF),  # below half way to what float16 lacks
        (2.0**-24, torch.float16, 0x0001),
        (2.0**-25, torch.float16, 0x0000),
    ],
)
def test_it_rounds_as_the_standard_says(value: float, target: torch.dtype, bits: int) -> None:
    assert rounded_bits(torch.tensor([value]), target).tolist() == [bits]


def test_a_converter_that_truncates_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter rounds towards zero in its own conversion: the weights of the file are then not the checkpoint's."""

    def truncating(name: str, values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, TensorLoss]:
        assert (values.dtype, dtype) == (torch.float32, torch.bfloat16)
        return (values.contiguous().view(torch.int32) >> 16).to(torch.int16).view(dtype), TensorLoss(name)

    checkpoint = gainful(EVERYTHING)
    name = "model.layers.1.mlp.down_proj.weight"
    for narrow, expected in ((None, True), (truncating, False)):
        if narrow is not None:
            monkeypatch.setattr(weight_files, "narrow", narrow)
        folder = tmp_path / f"sound-{expected}"
        export(checkpoint, folder, Precision.BF16)
        with safe_open(folder / weight_files.WEIGHTS_FILE, framework="pt") as file:
            assert same_values(file.get_tensor(name), checkpoint, name) is expected


def test_it_shares_no_code_with_the_exporter() -> None:
    tree = ast.parse((REPOSITORY / "compare" / "audits" / "expected_values.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in modules if name and name.startswith("blockexport")} == {
        "blockexport.models.checkpoints.checkpoint"
    }
