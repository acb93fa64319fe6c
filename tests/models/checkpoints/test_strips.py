"""A tensor strip by strip is the tensor, from every kind of checkpoint, and a table is never read as a whole for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from blockexport.models.checkpoints import checkpoint as checkpoint_module
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.gguf_checkpoint import GgufCheckpoint
from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint
from blockexport.models.checkpoints.safetensors_checkpoint import SafetensorsCheckpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD
from blockexport.models.checkpoints.untied_checkpoint import UntiedCheckpoint
from blockexport.models.checkpoints.weight_values import finite_strips
from blockexport.models.errors import UsageError
from tests.small_models import small_config, small_weights, write_folder, write_gguf, write_odd_folder

GATE, QUERY = "model.layers.1.mlp.gate_proj.weight", "model.layers.1.self_attn.q_proj.weight"
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def _folder(path: Path) -> Checkpoint:
    config = small_config(dtype="bfloat16", tie_word_embeddings=True, **SIZES)
    return SafetensorsCheckpoint(write_folder(path / "model", config, small_weights(config), 3))


def _odd_folder(path: Path) -> Checkpoint:
    write_odd_folder(path)
    return SafetensorsCheckpoint(path)


def _gguf(path: Path) -> Checkpoint:
    config = small_config(**SIZES)
    kinds = {EMBEDDING: Kind.Q8_0, GATE: Kind.Q4_1, QUERY: Kind.Q4_0}
    return GgufCheckpoint(write_gguf(path / "model.gguf", config, small_weights(config), kinds))


def _random(path: Path) -> Checkpoint:
    return RandomCheckpoint(small_config(), 3, "small")


@pytest.mark.parametrize("make", [_folder, _odd_folder, _gguf, _random, lambda path: UntiedCheckpoint(_folder(path))])
def test_strips_in_order_are_the_tensor(
    make: Callable[[Path], Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make(tmp_path)
    monkeypatch.setattr(checkpoint_module, "STRIP", 330)
    for name, entry in checkpoint.entries.items():
        strips = list(checkpoint.strips(name))
        assert torch.equal(torch.cat(strips), checkpoint.read(name)), name
        assert max(strip.numel() for strip in strips) <= 330 or len(strips) == entry.shape[0], name
        assert len(strips) > 1 or entry.size <= 330, name


@pytest.mark.parametrize("make", [_folder, _odd_folder, _gguf])
def test_a_table_is_never_read_as_a_whole(
    make: Callable[[Path], Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make(tmp_path)
    monkeypatch.setattr(type(checkpoint), "read", lambda self, name: pytest.fail(f"{name} was read"))
    for name in {EMBEDDING, GATE} & checkpoint.entries.keys():
        assert sum(len(strip) for strip in checkpoint.strips(name)) == checkpoint.entries[name].shape[0]


def test_a_value_that_is_not_finite_is_told_with_its_place_in_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config()
    weights = small_weights(config)
    weights[GATE][41, 7] = weights[GATE][50, 0] = torch.inf
    checkpoint = SafetensorsCheckpoint(write_folder(tmp_path / "model", config, weights, 1))
    monkeypatch.setattr(checkpoint_module, "STRIP", 330)
    with pytest.raises(UsageError, match=r"gate_proj\.weight holds 2 values .* the first \(inf\) at \[41, 7\]"):
        list(finite_strips(checkpoint, GATE))


def test_a_tied_head_has_its_origin_in_the_embedding(tmp_path: Path) -> None:
    checkpoint = _folder(tmp_path)
    untied = UntiedCheckpoint(checkpoint)
    assert [checkpoint.origin(EMBEDDING), untied.origin(OUTPUT_HEAD), untied.origin(GATE)] == [
        EMBEDDING,
        EMBEDDING,
        GATE,
    ]
