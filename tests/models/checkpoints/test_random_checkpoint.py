"""Seeded weights: the same every time and everywhere, and a model that is not degenerate."""

from __future__ import annotations

import hashlib

import pytest
import torch

from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint
from tests.small_models import small_config


def test_a_tensor_depends_on_seed_and_name_alone() -> None:
    one, two = (RandomCheckpoint(small_config("qwen2"), 7, "x") for _ in range(2))
    names = list(one.entries)
    backwards = {name: two.read(name) for name in reversed(names)}
    assert all(torch.equal(one.read(name), backwards[name]) for name in names)
    other = RandomCheckpoint(small_config("qwen2"), 8, "x")
    assert not any(torch.equal(one.read(name), other.read(name)) for name in names)
    assert not torch.equal(one.read("model.layers.0.mlp.up_proj.weight"), one.read("model.layers.1.mlp.up_proj.weight"))


def test_the_bits_are_pinned() -> None:
    """A preset's bundle must come out the same in years and on other machines."""
    checkpoint = RandomCheckpoint(small_config("qwen2"), 0, "x")
    digest = hashlib.sha256()
    for name in checkpoint.entries:
        digest.update(checkpoint.read(name).numpy().tobytes())
    assert digest.hexdigest() == "c10dbe9daf63e87ecd09be2cf76df0138afe475c4c5e82fae289e099f9f9010c"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_spreads_and_types(dtype: str) -> None:
    checkpoint = RandomCheckpoint(small_config("qwen2", dtype=dtype), 0, "x")
    for name, entry in checkpoint.entries.items():
        tensor = checkpoint.read(name)
        assert (tensor.shape, tensor.dtype) == (entry.shape, getattr(torch, dtype))
        values = tensor.double()
        if name.endswith("norm.weight"):
            assert 0.75 <= values.min() < 0.9
            assert 1.1 < values.max() <= 1.25
        elif len(entry.shape) == 1:
            assert 0.05 < values.std() < 0.3
        else:
            gain = 2.5 if name in ("model.embed_tokens.weight", "lm_head.weight") else 1.0
            assert values.std() * entry.shape[1] ** 0.5 == pytest.approx(gain, rel=0.1)
            assert abs(values.mean()) < 0.1 * values.std()


def test_a_spread_can_be_given() -> None:
    checkpoint = RandomCheckpoint(small_config(), 0, "x", std=0.2)
    assert checkpoint.read("model.layers.0.mlp.up_proj.weight").std().item() == pytest.approx(0.2, rel=0.05)


def test_logits_lead_without_saturating() -> None:
    config = small_config(num_hidden_layers=8, tie_word_embeddings=True)
    model = load_model(RandomCheckpoint(config, 0, "x"), torch.float32, 64)
    ids = torch.arange(50)[None] % config.vocab_size
    logits, _ = model(ids, torch.arange(50)[None], empty_cache(config, 1, 64, torch.float32))
    assert 1.5 < logits.std() < 4
    assert 0.05 < logits.softmax(-1).amax(-1).mean() < 0.9
    assert (logits.argmax(-1) == ids).float().mean() < 0.5, "it merely repeats its input"
