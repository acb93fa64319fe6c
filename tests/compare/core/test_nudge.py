"""Runs that round anew: what is moved, by how much, and that the mathematics stays the same."""

from __future__ import annotations

import pytest
import torch

from blockexport.compare.core.logit_distance import measure
from blockexport.compare.core.nudge import LARGE, MORE_RUNS, RUNS, SHARE, LargeNudge, Looks, Nudge, Nudges, weight_of
from blockexport.compare.core.reference import Reference
from blockexport.models.checkpoints.checkpoint import Checkpoint

IDS = torch.arange(40) * 7 % 101


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_nudge_moves_some_values_to_a_neighbour(dtype: torch.dtype) -> None:
    values = torch.randn(200, 300, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    moved = Nudge(1)(values)
    assert moved.dtype == dtype and moved.shape == values.shape
    changed = moved != values
    assert float(changed.double().mean()) == pytest.approx(SHARE, rel=0.05)
    relative = ((moved.double() - values.double()).abs() / values.double().abs())[changed]
    epsilon = torch.finfo(dtype).eps
    assert epsilon / 2 * 0.99 <= float(relative.min()) and float(relative[relative < 2 * epsilon].max()) <= epsilon
    assert abs(float((moved.double() - values.double()).sum())) < 0.05 * float((moved - values).double().abs().sum())
    assert torch.equal(Nudge(1)(values), moved) and not torch.equal(Nudge(2)(values), moved)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_zeros_the_largest_and_what_is_not_finite_stay(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for value in (0.0, -0.0, largest, -largest, torch.inf, -torch.inf):
        values = torch.full((2000,), value, dtype=dtype)
        assert torch.equal(Nudge(0)(values), values)
    assert Nudge(0)(torch.full((2000,), torch.nan, dtype=dtype)).isnan().all()


def test_runs_differ_by_rounding_and_the_first_is_the_plain_one(tiny: Checkpoint) -> None:
    exact = Reference(tiny).run([IDS], [range(40)])[0]
    plain, *anew = (
        run[0] for run in Reference(tiny, torch.float32).runs([IDS], [range(40)], (None, Nudge(0), Nudge(1)))
    )
    assert torch.equal(plain, Reference(tiny, torch.float32).run([IDS], [range(40)])[0])
    assert not torch.equal(anew[0], anew[1])
    errors = [float((run.double() - exact).square().mean().sqrt()) for run in (plain, *anew)]
    assert all(errors[0] / 3 < error < errors[0] * 3 for error in errors), errors


def test_keys_and_values_too(tiny: Checkpoint) -> None:
    plain, anew = Reference(tiny, torch.bfloat16).keys_values(IDS, (None, Nudge(0)))
    (again,) = Reference(tiny, torch.bfloat16).keys_values(IDS)
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(plain, anew, strict=True))


def test_the_second_look_is_made_only_when_asked_for() -> None:
    made: list[int] = []

    def run(nudges: Nudges) -> list[float]:
        made.append(len(nudges))
        return [weight_of(nudge) for nudge in nudges]

    looks = Looks(run)
    looked = iter(looks)
    assert next(looked) == [1.0] * (1 + RUNS) and made == [1 + RUNS]
    assert next(looked) == [1.0] * (1 + RUNS + MORE_RUNS) + [1 / LARGE] * MORE_RUNS and made == [
        1 + RUNS,
        2 * MORE_RUNS,
    ]
    assert list(looks) == looks.made and len(made) == 2


def test_an_eighth_of_a_large_nudge_is_as_much_noise_as_a_small_one(tiny: Checkpoint) -> None:
    exact = Reference(tiny).run([IDS], [range(40)])[0]
    nudges = (Nudge(0), LargeNudge(0))
    runs = Reference(tiny, torch.float32).runs([IDS], [range(40)], nudges)
    small, large = (
        measure(run, exact, range(40)).weighted(weight_of(nudge)) for nudge, (run,) in zip(nudges, runs, strict=True)
    )
    assert small.rms / 3 < large.rms < small.rms * 3
    assert small.max_P.median() / 3 < large.max_P.median() < small.max_P.median() * 3
