"""The training loop: it runs the exported block, begins alike, follows its seed, and keeps the best look."""

from __future__ import annotations

import pytest
import torch

from blockexport.compare.ablation import training
from blockexport.compare.ablation.swaps import SWAPS, baseline, pairings
from blockexport.compare.ablation.training import (
    CONTEXT,
    MOST_WINDOWS,
    STRETCH,
    initial_model,
    logits_without_cache,
    split_text,
    train,
)
from blockexport.models.block.cache import empty_cache
from blockexport.models.errors import NotJudgedError

TEXT = b"".join(b"%d times seven is %d.\n" % (i, 7 * i) for i in range(150))


@pytest.mark.parametrize("name", SWAPS)
def test_what_is_trained_is_the_block_that_is_exported(name: str) -> None:
    (pairing,) = pairings([name], baseline(24, CONTEXT))
    generator = torch.Generator().manual_seed(4)
    model = initial_model(pairing.changed.config, seed=0)
    ids = torch.randint(256, (2, 19), generator=generator)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.2)
        found = logits_without_cache(model, ids)
        cache = empty_cache(model.config, 2, 23, torch.float32)
        expected, _ = model(ids, torch.arange(19).expand(2, 19), cache)
    assert found.std() > 0.3
    torch.testing.assert_close(found, expected)


def test_models_begin_alike_where_they_are_alike() -> None:
    (pairing,) = pairings(["mqa"], baseline(24, CONTEXT))
    base, changed = (dict(initial_model(side.config, 1).named_parameters()) for side in (pairing.base, pairing.changed))
    other = dict(initial_model(pairing.base.config, 2).named_parameters())
    differing = {name for name in base if base[name].shape != changed[name].shape}
    assert {name.rpartition("self_attn.")[2] for name in differing} == {"k_proj.weight", "v_proj.weight"}
    for name in base.keys() - differing:
        assert torch.equal(base[name], changed[name])
        assert base[name].ndim == 1 or not torch.equal(base[name], other[name])


def test_training_learns_and_keeps_the_best() -> None:
    config = baseline(24, CONTEXT)
    steps: list[None] = []
    trained = train(config, split_text([TEXT]), 0, 20, lambda: steps.append(None))
    assert len(steps) == 20 and [look.step for look in trained.looks] == list(range(21))
    losses = {look.step: look.held_out for look in trained.looks}
    assert 7.9 < losses[0] < 8.1  # as good as no idea of 256 bytes
    assert losses[trained.best] == min(losses.values()) < 7
    assert sum(trained.stretches) / len(trained.stretches) == pytest.approx(min(losses.values()), rel=1e-5)
    again = train(config, split_text([TEXT]), 0, 20)
    assert again.looks == trained.looks
    assert train(config, split_text([TEXT]), 1, 20).looks[-1] != trained.looks[-1]


def test_the_weights_are_those_of_the_best_look() -> None:
    """A text whose end has bytes that its beginning lacks: the more is learned, the worse."""
    text = bytes(range(97, 123)) * 100 + bytes(range(128, 256)) * 6
    trained = train(baseline(24, CONTEXT), split_text([text]), 0, 6)
    assert trained.best == 0 and trained.looks[-1].held_out > trained.looks[0].held_out + 0.03
    untrained = dict(initial_model(baseline(24, CONTEXT), 0).named_parameters())
    assert all(torch.equal(weight, untrained[name]) for name, weight in trained.weights.items())


def test_a_loss_that_is_not_finite_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LEARNING_RATE", 1e30)
    with pytest.raises(NotJudgedError, match=r"of a model 24 wide its loss is (nan|inf): a rate of 1e\+30 is too high"):
        train(baseline(24, CONTEXT), split_text([TEXT]), 0, 4)


def test_the_last_fifth_of_each_text_is_held_out() -> None:
    split = split_text([b"a" * 4000 + b"b" * 1000, b"c" * 400 + b"d" * 100])
    assert bytes(split.trained_T.tolist()) == b"a" * 4000 + b"c" * 400
    assert split.held_out_WC.shape == ((1100 - 1) // CONTEXT, CONTEXT + 1)
    assert torch.equal(split.held_out_WC[1:, 0], split.held_out_WC[:-1, -1])  # each byte is predicted once
    assert CONTEXT % STRETCH == 0
    many = split_text([bytes(range(256)) * 4000]).held_out_WC
    assert MOST_WINDOWS // 2 < len(many) <= MOST_WINDOWS
