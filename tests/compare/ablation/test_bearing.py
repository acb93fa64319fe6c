"""What is borne out: not chance, over seeds or over bytes; but what holds over both."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from blockexport.compare.ablation.bearing import bearing, student


def losses(generator: random.Random, effect: float, seeds: int, by_seed: float, by_byte: float) -> list[list[float]]:
    """Stretches of each seed, around 2 bits."""
    rows = []
    for _ in range(seeds):
        shift = generator.gauss(effect, by_seed)
        rows.append([2 + shift + generator.gauss(0, by_byte) for _ in range(40)])
    return rows


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.7062), (2, 4.3027), (9, 2.2622), (11, 2.2010), (15, 2.1314), (39, 2.0227), (255, 1.9693)],
)
def test_quantiles_of_student_s_t(degrees: int, expected: float) -> None:
    assert student(degrees) == pytest.approx(expected, abs=1e-3)


def test_quantiles_fall_with_the_degrees_of_freedom() -> None:
    assert all(one > other for one, other in pairwise(map(student, range(1, 60))))


def test_chance_is_seldom_borne_out() -> None:
    generator = random.Random(1)
    sizes = (3, 0.03, 0.1)
    found = [
        bearing(losses(generator, 0, *sizes), losses(generator, 0, *sizes)).verdict != "not borne out"
        for _ in range(1000)
    ]
    assert 0 < sum(found) < 65  # 5 % of 1000, and two standard deviations


@pytest.mark.parametrize(("effect", "verdict"), [(-0.3, "better"), (0.3, "worse")])
def test_an_effect_larger_than_both_spreads_is_borne_out(effect: float, verdict: str) -> None:
    generator = random.Random(2)
    found = bearing(losses(generator, 0, 3, 0.02, 0.1), losses(generator, effect, 3, 0.02, 0.1))
    assert found.verdict == verdict
    assert found.difference == pytest.approx(effect, abs=0.1)


def test_a_difference_within_one_of_the_spreads_is_not() -> None:
    # The same at every byte, and of another sign at the third seed.
    by_seed = bearing([[2.0] * 9] * 3, [[1.8] * 9, [1.7] * 9, [2.1] * 9])
    assert by_seed.over_text == 0 and by_seed.over_seeds > abs(by_seed.difference)
    assert by_seed.verdict == "not borne out"
    # The same at every seed, and borne by one stretch of nine.
    by_byte = bearing([[2.0] * 9] * 3, [[2.0] * 8 + [1.0]] * 3)
    assert by_byte.over_seeds == 0 and by_byte.over_text > abs(by_byte.difference)
    assert by_byte.verdict == "not borne out"


def test_no_difference_at_all_is_not_borne_out() -> None:
    assert bearing([[2.0] * 4] * 2, [[2.0] * 4] * 2).verdict == "not borne out"
