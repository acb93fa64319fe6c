"""The verdict on given errors: limits from both sides, ties, NaN, and floors near zero."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
import torch

from blockexport.compare.core.logit_distance import Distances, Errors, measure, measure_distances
from blockexport.compare.core.noise import Floor, floor_of, judge_by, judge_errors
from blockexport.compare.core.tolerances import MAX_FACTOR, TIE_FACTOR

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


@pytest.mark.parametrize("count", [1, 2, 8, 9, 17, P])
def test_a_run_of_a_floor_is_measured_as_an_artifact_is(count: int) -> None:
    want, got = logits()[:count], logits()[:count] + 0.01 * logits(1)[:count]
    got[0, 3], got[-1, 5] = torch.inf, torch.nan
    whole = measure(got, want, range(count))
    alone = measure_distances(got, want, range(count))
    after_another = measure_distances(got, want, range(count), measure_distances(want - 1, want, range(count)))
    for field in fields(Distances):
        for run in (alone, after_another):
            torch.testing.assert_close(getattr(run, field.name), getattr(whole, field.name), equal_nan=True)
    assert whole.finite_P.tolist() == got.isfinite().all(-1).tolist()
    torch.testing.assert_close(whole.reference_spread_P, want.std(-1, correction=0))
    torch.testing.assert_close(alone.spread_P[1:-1], got.std(-1, correction=0)[1:-1])


def test_noise_of_the_same_size_passes() -> None:
    floor = floor_of([noisy(1e-5, 1)], torch.float32)
    found = judge_errors(noisy(1e-5, 2), floor)
    assert found.passed and found.rms_ratio == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("positions", "limit"), [(1, 6.5), (4, 3.75), (16, 2.375), (64, 1.69), (70, 1.66)])
def test_the_rms_limit_is_a_limit_and_is_wider_for_few_positions(positions: int, limit: float) -> None:
    few = range(positions)
    floor = floor_of([noisy(1e-5, 1).select(few)], torch.float32)
    assert floor.bearing == pytest.approx(positions, rel=0.05) and floor.rms_limit == pytest.approx(limit, rel=0.05)
    assert judge_errors(noisy(1e-5 * limit * 0.94, 1).select(few), floor).passed
    assert not judge_errors(noisy(1e-5 * limit * 1.06, 1).select(few), floor).passed


def test_positions_that_bear_little_of_the_error_count_little() -> None:
    one = logits() + 1e-7 * logits(1)
    one[9] += 1e-4 * logits(2)[9]
    floor = floor_of([measure(one, logits(), range(P))], torch.float32)
    assert floor.bearing == pytest.approx(1, abs=0.01) and floor.rms_limit == pytest.approx(6.5, abs=0.1)
    exact = measure(logits(), logits(), range(P))
    assert floor_of([exact], torch.float32).bearing == P


def test_the_largest_of_several_runs_counts() -> None:
    small, large = noisy(1e-6, 1), noisy(1e-5, 2)
    assert floor_of([small, large, small], torch.float32).rms == large.rms
    assert torch.equal(floor_of([small, large], torch.float32).rms_P, large.rms_P)


def test_a_firmer_floor_decides_where_few_positions_are_outside() -> None:
    first = floor_of([noisy(1e-5, 1)], torch.float32)
    firm = replace(first, rms=first.rms * 100, max_P=first.max_P * 100)
    asked: list[str] = []

    def floors() -> Iterator[Floor]:
        asked.append("first")
        yield first
        asked.append("firm")
        yield firm

    def off_at(*where: int) -> Errors:
        got = logits() + 1e-5 * logits(3) / 4
        for position in where:
            got[position, 7] += 20 * MAX_FACTOR.value * float(first.max_P[position])
        return measure(got, logits(), range(P))

    for errors, passes, looks in (
        (off_at(), True, ["first"]),
        (off_at(23), True, ["first", "firm"]),
        (off_at(*range(30)), False, ["first"]),
        (measure(logits() * torch.nan, logits(), range(P)), False, ["first"]),
    ):
        asked.clear()
        found, floor = judge_by(errors, floors())
        assert found.passed is passes and asked == looks and floor is (firm if "firm" in looks else first)
    assert not judge_by(off_at(23), [first])[0].passed


def test_one_bad_logit_fails_and_is_named() -> None:
    floor = floor_of([noisy(1e-5, 1)], torch.float32)
    good = logits() + 1e-5 * logits(3) / 4
    for factor, passes in ((0.9, True), (1.1, False)):
        bad = good.clone()
        bad[23, 7] = logits()[23, 7] + factor * MAX_FACTOR.value * floor.max_P[23]
        found = judge_errors(measure(bad, logits(), range(P)), floor)
        assert found.worst_position == 23
        assert found.passed is passes


def test_nan_and_infinity_fail() -> None:
    floor = floor_of([noisy(1e-5, 1)], torch.float32)
    for value in (torch.nan, torch.inf, -torch.inf):
        bad = logits()
        bad[5, 3] = value
        found = judge_errors(measure(bad, logits(), range(P)), floor)
        assert found.not_finite == [5] and not found.passed


def test_top1_inside_the_floor_is_a_tie_and_outside_a_failure() -> None:
    want = logits()
    want[9, 40], want[9, 41] = 30.0, 30.0 - 1e-5
    got = want.clone()
    got[9, 40], got[9, 41] = 30.0 - 5e-6, 30.0 - 4.99e-6  # half way towards each other
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
