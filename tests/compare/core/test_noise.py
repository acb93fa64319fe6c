"""The verdict on given errors: limits from both sides, ties, NaN, and floors near zero."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from blockexport.compare.core.logit_distance import Errors, measure
from blockexport.compare.core.noise import floor_of, judge_errors
from blockexport.compare.core.tolerances import MAX_FACTOR, RMS_FACTOR, RMS_FACTOR_FEW, RMS_FACTOR_FEWEST, TIE_FACTOR

P, V = 70, 300


def logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(P, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 4


def noisy(size: float, seed: int) -> Errors:
    noise = torch.randn(P, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return measure(logits() + size * noise, logits(), range(P))


def test_figures_are_those_of_their_definitions() -> None:
    want, got = logits(), logits() + 0.01 * logits(1)
    errors = measure(got, want, range(10, 10 + P))
    assert errors.positions_P.tolist() == list(range(10, 10 + P))
    assert errors.rms == pytest.approx(float((got - want).square().mean().sqrt()))
    assert errors.max_P[7] == (got - want)[7].abs().max()
    assert errors.relative_l2 == pytest.approx(float((got - want).norm() / want.norm()))
    kl = torch.nn.functional.kl_div(got.log_softmax(-1), want.softmax(-1), reduction="none").sum(-1)
    torch.testing.assert_close(errors.kl_P, kl, rtol=1e-6, atol=1e-12)
    assert errors.select([12, 49]).positions_P.tolist() == [12, 49]


def test_noise_of_the_same_size_passes() -> None:
    floor = floor_of([noisy(1e-5, 1)], torch.float32)
    found = judge_errors(noisy(1e-5, 2), floor)
    assert found.passed and found.rms_ratio == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("positions", "limit"),
    [
        (7, RMS_FACTOR_FEWEST.value),
        (8, RMS_FACTOR_FEW.value),
        (63, RMS_FACTOR_FEW.value),
        (64, RMS_FACTOR.value),
    ],
)
def test_the_rms_limit_is_a_limit_and_is_wider_for_few_positions(positions: int, limit: float) -> None:
    few = range(positions)
    floor = floor_of([noisy(1e-5, 1).select(few)], torch.float32)
    assert judge_errors(noisy(1e-5 * limit * 0.97, 2).select(few), floor).passed
    assert not judge_errors(noisy(1e-5 * limit * 1.03, 2).select(few), floor).passed


def test_rows_of_a_batch_are_few_positions_many_times() -> None:
    rows = [range(30), range(30), range(25)]
    floor = floor_of([Errors.join([noisy(1e-5, 1).select(row) for row in rows])], torch.float32)
    found = judge_errors(Errors.join([noisy(1e-5, 2).select(row) for row in rows]), floor)
    assert found.rms_limit == RMS_FACTOR_FEW.value


def test_one_bad_logit_fails_and_is_named() -> None:
    floor = floor_of([noisy(1e-5, 1)], torch.float32)
    good = logits() + 1e-5 * logits(3) / 4
    for factor, passes in ((0.9, True), (1.1, False)):
        bad = good.clone()
        bad[23, 7] = logits()[23, 7] + factor * MAX_FACTOR.value * floor.max_P[23]
        found = judge_errors(measure(bad, logits(), range(P)), floor)
        assert found.worst == 23
        assert found.passed is passes


def test_nan_and_infinity_fail() -> None:
    floor = floor_of([noisy(1e-5, 1)], torch.float32)
    for value in (torch.nan, torch.inf):
        bad = logits()
        bad[5, 3] = value
        found = judge_errors(measure(bad, logits(), range(P)), floor)
        assert found.not_finite == [5] and not found.passed


def test_top1_inside_the_floor_is_a_tie_and_outside_a_failure() -> None:
    want = logits()
    want[9, 40], want[9, 41] = 30.0, 30.0 - 1e-5
    got = want.clone()
    got[9, 41] = 30.0 + 1e-7
    errors = measure(got, want, range(P))
    floor = floor_of([errors], torch.float32)
    wide = replace(floor, rms=1.0, max_P=torch.full((P,), 1.01e-5 / TIE_FACTOR.value))
    narrow = replace(wide, max_P=torch.full((P,), 0.99e-5 / TIE_FACTOR.value))
    assert judge_errors(errors, wide).ties == [9] and judge_errors(errors, wide).passed
    found = judge_errors(errors, narrow)
    assert (found.ties, found.disagreements, found.passed) == ([], [9], False)
    assert judge_errors(errors, narrow, has_top1=False).disagreements == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_logits_that_are_only_rounded_pass_an_eager_without_error(dtype: torch.dtype) -> None:
    exact = measure(logits(), logits(), range(P))
    rounded = measure(logits().to(dtype), logits(), range(P))
    found = judge_errors(rounded, floor_of([exact], dtype))
    assert found.passed and 0.4 < found.rms_ratio <= 1 and found.max_ratio <= 1


def test_a_floor_of_zero_logits_is_no_excuse() -> None:
    zeros = torch.zeros(P, V, dtype=torch.float64)
    floor = floor_of([measure(zeros, zeros, range(P))], torch.float32)
    assert not judge_errors(measure(zeros + 1e-6, zeros, range(P)), floor).passed
    assert judge_errors(measure(zeros, zeros, range(P)), floor).passed


def test_a_position_where_eager_was_lucky_does_not_fail() -> None:
    eager = logits() + 1e-5 * logits(3)
    eager[11] = logits()[11]
    floor = floor_of([measure(eager, logits(), range(P))], torch.float32)
    assert judge_errors(measure(logits() + 1e-5 * logits(4), logits(), range(P)), floor).passed
