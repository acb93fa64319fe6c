"""Mistakes in reading a family's own layout: `compare` fails the file, and says of the first weight what it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch

from blockexport.cli.main import main
from tests.compare.memory_checkpoint import MemoryCheckpoint
from tests.exported import export
from tests.small_models import Weights, small_config, small_weights

N, H = 6, 8  # heads, and their width; D is N * H in these families
QKV = [f"model.layers.0.self_attn.{one}_proj" for one in "qkv"]
OUT = "model.layers.1.self_attn.o_proj.weight"


def _transposed(weights: Weights) -> Weights:
    """A `Conv1D` that was taken for a linear layer."""
    return {OUT: weights[OUT].T.contiguous()}


def _stacked(weights: Weights, kind: str) -> torch.Tensor:
    return torch.stack([weights[f"{name}.{kind}"].unflatten(0, (N, H)) for name in QKV])


def _split_in_three(weights: Weights) -> Weights:
    """GPT-NeoX's stack, which is head by head, taken apart as GPT-2's."""
    found: Weights = {}
    for kind in ("weight", "bias"):
        parts = _stacked(weights, kind).swapaxes(0, 1).flatten(0, 2).chunk(3)
        found |= {f"{name}.{kind}": part.contiguous() for name, part in zip(QKV, parts, strict=True)}
    return found


def _split_by_head(weights: Weights) -> Weights:
    """GPT-2's stack taken apart as GPT-NeoX's."""
    found: Weights = {}
    for kind in ("weight", "bias"):
        whole = _stacked(weights, kind).flatten(0, 2).unflatten(0, (N, 3, H))
        found |= {f"{name}.{kind}": whole[:, place].flatten(0, 1) for place, name in enumerate(QKV)}
    return found


MISTAKES: dict[str, tuple[str, Callable[[Weights], Weights], str]] = {
    "Conv1D": ("gpt2", _transposed, f"{OUT} holds the checkpoint's values transposed"),
    "in three": (
        "gpt_neox",
        _split_in_three,
        f"{QKV[1]}.weight holds rows of q, k and v: a matrix that has the three head by head was split in three",
    ),
    "by head": (
        "gpt2",
        _split_by_head,
        f"{QKV[0]}.weight holds rows of q, k and v: a matrix that has the three one after the other was split head by",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_layout_that_was_read_wrongly_is_named(mistake: str, tmp_path: Path) -> None:
    family, spoil, said = MISTAKES[mistake]
    config = small_config(
        family,
        hidden_size=N * H,
        num_attention_heads=N,
        num_key_value_heads=N,
        head_dim=H,
        learned_positions=family == "gpt2",
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), True),
    )
    weights = small_weights(config)
    export(MemoryCheckpoint(config, weights | spoil(weights)), tmp_path / "bundle", slots=32)
    sound = MemoryCheckpoint(config, weights)
    with mock.patch("blockexport.runtime.recorded_source.open_checkpoint", return_value=sound):
        assert main(["compare", str(tmp_path / "bundle"), "--report", str(tmp_path / "parity"), "-q"]) == 1
    report = json.loads((tmp_path / "parity" / "report.json").read_text())
    failed = {check["name"]: check["message"] for check in report["checks"] if check["verdict"] == "fail"}
    assert {"parameters", "prefill", "decode"} <= failed.keys()
    assert said in failed["parameters"] and "Likely cause" in (tmp_path / "parity" / "report.html").read_text()
