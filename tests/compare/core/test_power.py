"""Comparisons that nothing could fail: the rule itself. What it does to whole judgements is in test_vacuous.py."""

from __future__ import annotations

import pytest
import torch

from blockexport.compare.core.check import Outcome, Verdict
from blockexport.compare.core.logit_distance import measure
from blockexport.compare.core.power import doubts, lost_in, spread_over_positions

P, V = 10, 40


def logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(P, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_an_error_of_half_the_spread_is_too_much_to_allow() -> None:
    errors = measure(logits(), logits(), range(P))  # of a spread of about 1
    assert doubts(errors, 0.45) == []
    assert "what is compared is noise" in doubts(errors, 0.55)[0]
    assert doubts(errors, float("nan")) and doubts(errors, float("inf"))


def test_a_reference_that_says_nothing() -> None:
    alike = torch.full((P, V), 3.0, dtype=torch.float64)
    assert "all the same among the outputs" in doubts(measure(alike, alike, range(P)), 0.0)[0]
    lost = logits()
    lost[3, 5] = torch.nan
    assert "reference itself is NaN" in doubts(measure(logits(), lost, range(P)), 0.0)[0]
    assert doubts(measure(logits(), logits(), range(P)).select([]), 0.0) == ["no position was compared"]


def test_outputs_that_do_not_depend_on_the_position() -> None:
    same = logits()[:1].expand(P, V)
    assert spread_over_positions(same) == 0.0 and lost_in("anywhere", 0.0, 0.0)
    assert spread_over_positions(logits()) == pytest.approx(1, rel=0.1)
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
    result = outcome.result("some")
    assert (result.name, result.verdict, result.message) == ("some", verdict, message)
