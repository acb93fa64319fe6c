"""Comparisons that nothing could fail: the rule itself. What it does to whole judgements is in test_vacuous.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from blockexport.compare.core.check import Check, Kind, Outcome, Verdict
from blockexport.compare.core.could_fail import doubts, lost_in, spread_over_positions
from blockexport.compare.core.logit_distance import measure
from blockexport.compare.core.noise import Floor
from blockexport.compare.core.tolerances import MAX_FACTOR

P, V = 10, 40


def logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(P, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def floor(allowed: float) -> Floor:
    """One that lets errors of a root mean square up to `allowed` pass, however they are spread over the positions."""
    made = Floor(1.0, torch.ones(P), torch.full((P,), torch.inf), P, torch.ones(P, dtype=torch.bool))
    return replace(made, rms=allowed / made.rms_limit)


def test_an_error_of_half_the_spread_is_too_much_to_allow() -> None:
    errors = measure(logits(), logits(), range(P))  # of a spread of about 1
    assert doubts(errors, floor(0.45)) == []
    assert "what is compared is noise" in doubts(errors, floor(0.55))[0]
    assert doubts(errors, floor(float("nan"))) and doubts(errors, floor(float("inf")))


def test_more_than_half_of_the_positions_that_tell_are_enough() -> None:
    errors, loud = measure(logits(), logits(), range(P)), floor(0.55)
    for telling, enough in ((P // 2, False), (P // 2 + 1, True)):
        max_P = loud.max_P.clone()
        max_P[:telling] = 0.4 * errors.reference_max_P[:telling] / MAX_FACTOR.value
        assert (doubts(errors, replace(loud, max_P=max_P)) == []) is enough


def test_a_reference_that_says_nothing() -> None:
    alike = torch.full((P, V), 3.0, dtype=torch.float64)
    assert "all the same among the outputs" in doubts(measure(alike, alike, range(P)), floor(0.0))[0]
    lost = logits()
    lost[3, 5] = torch.nan
    assert "reference itself is NaN" in doubts(measure(logits(), lost, range(P)), floor(0.0))[0]
    assert doubts(measure(logits(), logits(), range(P)).select([]), floor(0.0)) == ["no position was compared"]


def test_outputs_that_do_not_depend_on_the_position() -> None:
    same = logits()[:1].expand(P, V)
    flat, spread = spread_over_positions(same), spread_over_positions(logits())
    assert flat is not None and flat == 0.0 and lost_in("anywhere", flat, floor(0.0))
    assert spread is not None and float(spread) == pytest.approx(1, rel=0.1)
    assert spread_over_positions(logits()[:1]) is None


@pytest.mark.parametrize(
    ("outcome", "verdict", "message"),
    [
        (Outcome("fine", 3), Verdict.PASS, "fine"),
        (Outcome("fine", 0), Verdict.NOT_JUDGED, "nothing was compared"),
        (Outcome("fine", 3, doubts=["blind"]), Verdict.NOT_JUDGED, "blind"),
        (Outcome("fine", 3, ["wrong"], ["blind"]), Verdict.FAIL, "wrong"),
        (Outcome("fine", 0, ["wrong"]), Verdict.FAIL, "wrong"),
    ],
)
def test_one_rule_makes_a_verdict_of_what_a_check_found(outcome: Outcome, verdict: Verdict, message: str) -> None:
    result = outcome.result(Check("some", Kind.CONTENT, lambda context: outcome))
    assert (result.name, result.verdict, result.message) == ("some", verdict, message)
