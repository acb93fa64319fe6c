"""What quantising costs: KL, perplexity and agreement, by hand and beside models run whole."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from blockexport.compare.core.quantising_cost import (
    CHUNK,
    NamedRun,
    QuantisingCost,
    RunCost,
    measure_cost,
    predicted,
)
from blockexport.compare.core.reference import Reference
from blockexport.export.weights.block_quantiser import quantise
from blockexport.models.quantised_matrix import QuantisationScheme
from blockexport.runtime.eager import EagerDecoder
from tests.compare.memory_checkpoint import MemoryCheckpoint, eager_model, random_checkpoint

Opener = Callable[..., EagerDecoder]

WINDOW = 70  # longer than a chunk, and no divisor of the text
IDS_S = torch.randint(0, 101, (187,), generator=torch.Generator().manual_seed(5))


def measured(checkpoint: EagerDecoder, *quantised: EagerDecoder, window: int = WINDOW) -> QuantisingCost:
    runs = [NamedRun(f"run {i}", decoder) for i, decoder in enumerate(quantised)]
    return measure_cost(checkpoint, runs, IDS_S, window, "text")


def log_p(checkpoint: MemoryCheckpoint) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Log-probabilities [P, V] at every position with a token after it, each window whole, in float64."""
    windows = IDS_S[:-1].split(WINDOW)
    logits = Reference(checkpoint).run(windows, [range(len(window)) for window in windows])
    found = torch.cat(logits).numpy()
    shifted: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = found - found.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def rounded(checkpoint: MemoryCheckpoint, bits: int) -> MemoryCheckpoint:
    scheme = QuantisationScheme(bits)
    return MemoryCheckpoint(
        checkpoint.config,
        {
            name: quantise(name, tensor, scheme, torch.float16)[0].dequantised() if "_proj.weight" in name else tensor
            for name, tensor in checkpoint.tensors.items()
        },
    )


def test_figures_worked_out_by_hand() -> None:
    checkpoint = torch.tensor([[1 / 2, 1 / 4, 1 / 4], [1 / 2, 1 / 4, 1 / 4]], dtype=torch.float64).log()
    model = torch.tensor([[1 / 4, 1 / 2, 1 / 4], [1 / 2, 1 / 4, 1 / 4]]).log() + 3  # logits have no zero of their own
    found = predicted(checkpoint, model, torch.tensor([1, 2]))
    # 1/2 ln(1/2 : 1/4) + 1/4 ln(1/4 : 1/2) = 1/4 ln 2
    assert found.kl_P.tolist() == pytest.approx([math.log(2) / 4, 0], abs=1e-7)
    assert found.surprise_P.tolist() == pytest.approx([math.log(2), math.log(4)])
    assert found.agrees_P.tolist() == [False, True]


def test_every_figure_is_that_of_the_models_run_whole(tiny: MemoryCheckpoint, eager: Opener) -> None:
    assert WINDOW > CHUNK and (len(IDS_S) - 1) % WINDOW
    other = random_checkpoint(tiny.config, seed=1)
    mixed = {name: 0.97 * tensor + 0.03 * other.tensors[name] for name, tensor in tiny.tensors.items()}
    near = MemoryCheckpoint(tiny.config, mixed)
    cost = measured(eager(tiny, 96), eager(near, 80))

    p, q, following = log_p(tiny), log_p(near), IDS_S[1:, None].numpy()
    kl = (np.exp(p) * (p - q)).sum(-1)
    run = cost.runs[0]
    assert (cost.tokens, cost.window) == (186, WINDOW)
    assert run.kl_mean == pytest.approx(kl.mean(), rel=1e-3)
    assert run.kl_high == pytest.approx(np.percentile(kl, 99), rel=1e-3)
    assert cost.perplexity == pytest.approx(np.exp(-np.take_along_axis(p, following, -1).mean()), rel=1e-4)
    assert run.perplexity == pytest.approx(np.exp(-np.take_along_axis(q, following, -1).mean()), rel=1e-4)
    assert run.agreement == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean())
    assert 0 < run.agreement < 1 and run.kl_high > 2 * run.kl_mean > 0


def test_equal_weights_cost_nothing_and_more_bits_cost_less(tiny: MemoryCheckpoint, eager: Opener) -> None:
    checkpoint = eager(tiny, WINDOW)
    same, eight, four = measured(
        checkpoint, eager(tiny, WINDOW), eager(rounded(tiny, 8), WINDOW), eager(rounded(tiny, 4), WINDOW)
    ).runs
    assert (same.kl_mean, same.kl_high, same.agreement) == (0, 0, 1)
    assert 0 < 20 * eight.kl_mean < four.kl_mean
    assert eight.agreement >= four.agreement


def test_a_file_that_gives_last_logits_only_is_fed_token_by_token(tiny: MemoryCheckpoint, eager: Opener) -> None:
    last = EagerDecoder(eager_model(tiny, last_logits_only=True), WINDOW)
    run = measured(eager(tiny, WINDOW), last).runs[0]
    assert run.kl_mean < 1e-9 and run.agreement == 1


@pytest.mark.parametrize(("kl", "limit", "over"), [(0.2, None, 0), (0.2, 0.2, 0), (0.2, 0.1, 1), (math.nan, 9.0, 1)])
def test_only_a_limit_can_be_passed_and_nan_is_beyond_any(kl: float, limit: float | None, over: int) -> None:
    cost = QuantisingCost("text", 9, 9, 2.0, (RunCost("exact", kl, kl, 2.0, 1.0),), max_kl=limit)
    assert len(cost.too_high) == over


def test_outputs_that_are_no_numbers_are_told_as_such(tiny: MemoryCheckpoint, eager: Opener) -> None:
    broken = MemoryCheckpoint(tiny.config, {**tiny.tensors, "lm_head.weight": tiny.read("lm_head.weight") * math.nan})
    run = measured(eager(tiny, WINDOW), eager(broken, WINDOW)).runs[0]
    assert math.isnan(run.kl_mean) and math.isnan(run.kl_high) and math.isnan(run.perplexity)
