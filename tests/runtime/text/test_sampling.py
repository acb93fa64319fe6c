"""Sampling: the vectorised code against the rule spelt out one number at a time, and against the published vectors."""

from __future__ import annotations

import decimal
import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from blockexport.models.errors import UsageError
from blockexport.runtime.text.sampling import Sampler, SamplingOptions, SplitMix64, exp_nonpositive, ordered_candidates
from tests.runtime.text import sampling_reference as reference


def _options(case: dict[str, Any]) -> SamplingOptions:
    return SamplingOptions(case["temperature"], case["top_k"], case["top_p"], case["seed"])


def test_splitmix64_gives_the_published_sequence() -> None:
    """First outputs for seed 1234567, as published with the generator's public-domain C source."""
    generator = SplitMix64(1234567)
    assert [generator.next_bits() for _ in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    uniforms = [SplitMix64(seed).next_uniform() for seed in range(2000)]
    assert all(0.0 <= u < 1.0 for u in uniforms)
    assert abs(sum(uniforms) / len(uniforms) - 0.5) < 0.02


def test_the_published_vectors_are_what_the_rule_gives() -> None:
    assert json.loads(reference.VECTORS.read_text(encoding="utf-8")) == reference.vectors()


@pytest.mark.parametrize("case", reference.CASES, ids=lambda case: f"V{case['vocab_size']}-t{case['temperature']}")
def test_sampler_repeats_the_vectors(case: dict[str, Any]) -> None:
    logits = np.array(reference.made_logits(case["vocab_size"], case["logits_seed"], case["step"]), dtype=np.float32)
    sampler = Sampler(_options(case))
    assert [sampler.sample(logits) for _ in range(12)] == reference.draws(case, 12)


def test_sampler_equals_the_scalar_rule_on_random_logits() -> None:
    """Many shapes of distribution, ties and -infinity included."""
    rng = np.random.default_rng(4)
    for trial in range(150):
        logits = (rng.standard_normal(rng.integers(1, 300)) * rng.choice([0.01, 1.0, 6.0, 90.0])).astype(np.float32)
        if trial % 3 == 0:
            logits = np.round(logits)
        if trial % 5 == 0:
            logits[rng.random(len(logits)) < 0.3] = -np.inf
            logits[0] = 0.0
        case: dict[str, Any] = {
            "temperature": float(rng.choice([0.3, 1.0, 2.5])),
            "top_k": int(rng.choice([0, 1, 3, 40])),
            "top_p": float(rng.choice([0.1, 0.9, 1.0])),
        }
        sampler, state = Sampler(SamplingOptions(**case, seed=trial)), trial
        for _ in range(4):
            expected, state = reference.draw([float(x) for x in logits], **case, state=state)
            assert sampler.sample(logits) == expected


def test_exp_has_the_bits_of_the_scalar_rule_and_is_accurate() -> None:
    rng = np.random.default_rng(5)
    x = np.concatenate([-rng.random(4000) * scale for scale in (1e-6, 1.0, 30.0, 700.0)])
    y = exp_nonpositive(x)
    assert [float(v) for v in y] == [reference.exp(float(v)) for v in x]
    decimal.getcontext().prec = 40
    worst = 0.0
    for value, result in zip(x[::4], y[::4], strict=True):
        exact = decimal.Decimal(float(value)).exp()
        error = abs(decimal.Decimal(float(result)) - exact) / decimal.Decimal(math.ulp(float(exact)))
        worst = max(worst, float(error))
    assert 0.5 < worst < 1.2, worst
    assert max(abs(float(r) - math.exp(v)) / math.ulp(math.exp(v)) for v, r in zip(x, y, strict=True)) <= 1.0
    assert list(exp_nonpositive(np.array([0.0, -700.5, -np.inf]))) == [1.0, 0.0, 0.0]


def test_order_is_by_logit_and_then_by_id() -> None:
    rng = np.random.default_rng(6)
    logits = np.round(rng.standard_normal(3000) * 3).astype(np.float32)
    logits[::7] = -0.0
    expected = sorted(range(3000), key=lambda i: (-float(logits[i]), i))
    for top_k in (0, 1, 2, 700, 2999, 3000, 5000):
        assert list(ordered_candidates(logits, top_k)) == expected[: top_k or None]


def test_greedy_takes_the_lowest_id_of_a_tie_and_draws_nothing() -> None:
    logits = np.array([1.0, 3.0, 3.0, -2.0], dtype=np.float32)
    assert [Sampler(SamplingOptions()).sample(logits) for _ in range(3)] == [1, 1, 1]
    assert Sampler(SamplingOptions(temperature=0.5, top_k=1, seed=9)).sample(logits) == 1
    assert Sampler(SamplingOptions(temperature=0.5, top_p=1e-9, seed=9)).sample(logits) == 1


def test_top_p_keeps_no_more_than_it_needs_at_the_boundary() -> None:
    """Four equal candidates have the sums 1, 2, 3, 4: half of 4 is reached by two of them exactly."""
    logits = np.full(4, 2.5, dtype=np.float32)
    sampler = Sampler(SamplingOptions(temperature=1.0, top_p=0.5, seed=1))
    assert {sampler.sample(logits) for _ in range(100)} == {0, 1}


def test_frequencies_follow_the_softmax() -> None:
    logits = np.array([0.0, 1.0, 2.0, -1.0], dtype=np.float32)
    sampler = Sampler(SamplingOptions(temperature=1.0, seed=11))
    counts = Counter(sampler.sample(logits) for _ in range(20000))
    weights = np.exp(logits.astype(np.float64))
    for token, probability in enumerate(weights / weights.sum()):
        assert abs(counts[token] / 20000 - probability) < 0.012


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_logits_are_refused(bad: float) -> None:
    for options in (SamplingOptions(), SamplingOptions(temperature=1.0, top_k=2)):
        logits = np.array([0.0, 5.0, bad, 1.0], dtype=np.float32)
        with pytest.raises(UsageError, match=r"4 logits is (nan|inf)"):
            Sampler(options).sample(logits)
        with pytest.raises(UsageError, match="-inf"):
            Sampler(options).sample(np.full(4, -np.inf, dtype=np.float32))


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top-k is -1"),
        ({"top_p": 0.0}, "top-p is 0.0"),
        ({"top_p": 1.5}, "top-p is 1.5"),
        ({"seed": 1 << 64}, "seed is 18446744073709551616"),
    ],
)
def test_options_out_of_range_are_refused(values: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        SamplingOptions(**values)
