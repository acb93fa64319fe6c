"""What a check is, and how what it found becomes a verdict.

A check is a function of a `CheckContext`, marked with `@check`; `compare/checks/catalogue.py` lists them all. None
gives itself a verdict: it says what it compared and what is wrong with it, and `Outcome.result` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from blockexport.models.errors import ArtifactError

if TYPE_CHECKING:
    from blockexport.compare.core.context import CheckContext


class Verdict(StrEnum):
    """What came of a check, or of all of them. `NOT_JUDGED` is never a pass."""

    PASS = "pass"
    FAIL = "fail"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class CheckResult:
    """One check's outcome: a sentence for people, and figures (plain JSON values) for programs."""

    name: str
    verdict: Verdict
    message: str
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a check found.

    Attributes:
        message: what was looked at and found, where nothing is wrong.
        compared: how many things were held against others: positions, tensors, tokens, nodes.
        complaints: what is wrong, a clause each.
        doubts: why the comparisons say nothing although none of them failed, a clause each; see power.py.
        figures: plain JSON values, for programs.
    """

    message: str
    compared: int
    complaints: Sequence[str] = ()
    doubts: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    def result(self, name: str) -> CheckResult:
        """The one rule: any complaint is a failure, and a pass needs a comparison that could have failed."""
        doubts = self.doubts if self.compared else [*self.doubts, "nothing was compared"]
        if self.complaints:
            return CheckResult(name, Verdict.FAIL, "; ".join(self.complaints), self.figures)
        if doubts:
            return CheckResult(name, Verdict.NOT_JUDGED, "; ".join(doubts), self.figures)
        return CheckResult(name, Verdict.PASS, self.message, self.figures)


CheckFunction = Callable[["CheckContext"], Outcome]


@dataclass(frozen=True)
class Check:
    """A check: its name, what it looks at in a few words, and how it is run.

    `inapplicable` gives the reason why a check says nothing about an artifact, or None where it applies. `to_last_slot`
    says that it looks at the end of the cache, so the judged sequence has to reach there.
    """

    name: str
    summary: str
    function: CheckFunction
    inapplicable: Callable[[CheckContext], str | None]
    to_last_slot: bool = False

    def run(self, context: CheckContext) -> CheckResult:
        """Run it where it applies. An artifact that cannot be run is a bad one, and so is one whose outputs are NaN or
        infinite in any call, whatever the check is about."""
        context.decoder.listen()
        try:
            outcome = self.function(context)
        except ArtifactError as error:
            return CheckResult(self.name, Verdict.FAIL, str(error))
        lost = context.decoder.lost
        if lost and not outcome.complaints:
            outcome = replace(outcome, complaints=[f"NaN or infinity in the outputs of a call at position {lost[0]}"])
        return outcome.result(self.name)


def check(
    name: str,
    summary: str,
    *,
    inapplicable: Callable[[CheckContext], str | None] = lambda context: None,
    to_last_slot: bool = False,
) -> Callable[[CheckFunction], Check]:
    """Make a function the check called `name`."""

    def made(function: CheckFunction) -> Check:
        return Check(name, summary, function, inapplicable, to_last_slot)

    return made
