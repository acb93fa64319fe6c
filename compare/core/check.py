"""What a check is, and how what it found becomes a verdict.

A check is a function of a `CheckContext` in a `Check`; `compare/checks/catalogue.py` lists them all. None gives itself
a verdict: it says what it compared and what is wrong with it, and `Outcome.result` decides. All that others want to
know of a check, the report and the search for a cause, it carries itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch

from blockexport.compare.core.figures import Figures, StretchFigures
from blockexport.compare.core.position_plan import calls_of
from blockexport.models.errors import ArtifactError

if TYPE_CHECKING:
    from blockexport.compare.core.context import CheckContext

STEPS = 6  # after a prompt that failed


class Verdict(StrEnum):
    """What came of a check, or of all of them. `NOT_JUDGED` is never a pass."""

    PASS = "pass"
    FAIL = "fail"
    NOT_JUDGED = "not judged"


class Kind(StrEnum):
    """What a check holds against what: how a verdict is worded, and what its failure says, follow from it."""

    NUMERICAL = "numerical"  # outputs against the reference: only these prove equality
    BEHAVIOUR = "behaviour"  # what calls do, against other calls of the artifact or against its cache
    CONTENT = "content"  # what the file holds; nothing is run, and the message is itself a cause
    TYPES = "types"  # the types that its graph declares; nothing is run
    PLACEMENT = "placement"  # where the artifact runs, and by what
    MODEL = "model"  # eager PyTorch alone; the artifact has no part in it, and a failure goes before all others

    @property
    def runs_artifact(self) -> bool:
        """Whether outputs of the artifact decide."""
        return self in (Kind.NUMERICAL, Kind.BEHAVIOUR)


@dataclass(frozen=True)
class CheckResult:
    """One check's outcome: a sentence for people, and figures for programs; None where nothing was measured."""

    check: Check
    verdict: Verdict
    message: str
    figures: Figures | None = None

    @property
    def name(self) -> str:
        """The check's."""
        return self.check.name

    @property
    def stretch(self) -> StretchFigures | None:
        """The figures of a comparison with the noise floor, where it was one."""
        return self.figures if isinstance(self.figures, StretchFigures) else None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values by the schema in report.py."""
        figures = {} if self.figures is None else self.figures.to_json()
        told = {"verdict": str(self.verdict), "message": self.message, "figures": figures}
        return {"name": self.name, "kind": str(self.check.kind), **told}


@dataclass(frozen=True)
class Outcome:
    """What a check found.

    Attributes:
        message: what was looked at and found, where nothing is wrong.
        compared: how many things were held against others: positions, tensors, tokens, nodes.
        complaints: what is wrong, a clause each.
        doubts: why the comparisons say nothing although none of them failed, a clause each; see could_fail.py.
        figures: what was measured.
    """

    message: str
    compared: int
    complaints: Sequence[str] = ()
    doubts: Sequence[str] = ()
    figures: Figures | None = None

    def result(self, entry: Check) -> CheckResult:
        """The one rule: any complaint is a failure, and a pass needs a comparison that could have failed."""
        doubts = self.doubts if self.compared else [*self.doubts, "nothing was compared"]
        if self.complaints:
            return CheckResult(entry, Verdict.FAIL, "; ".join(self.complaints), self.figures)
        if doubts:
            return CheckResult(entry, Verdict.NOT_JUDGED, "; ".join(doubts), self.figures)
        return CheckResult(entry, Verdict.PASS, self.message, self.figures)


@dataclass(frozen=True)
class FailingCalls:
    """The calls in which a check saw an artifact fail, as one row that can be walked again and looked into.

    Attributes:
        ids_S: int64, the tokens.
        calls: the positions of each call in turn.
        what: whose calls they are, for people.
        within: what it means when everything on the walk stays within the floor although the check failed.
    """

    ids_S: torch.Tensor
    calls: Sequence[range]
    what: str
    within: str


def prompt_and_steps(ids_S: torch.Tensor, prompt: int, what: str, within: str, steps: int = STEPS) -> FailingCalls:
    """A prompt in one call and single steps after it, as many as there are tokens for."""
    return FailingCalls(ids_S, calls_of((prompt, *(1,) * steps), len(ids_S)), what, within)


CheckFunction = Callable[["CheckContext"], Outcome]
Applicable = Callable[["CheckContext"], "str | None"]
CallsOf = Callable[["CheckContext", Figures | None], FailingCalls | None]


@dataclass(frozen=True)
class Check:
    """A check, with all that anybody else needs to know of it.

    Attributes:
        name: as on the command line.
        kind: what it holds against what.
        function: how it is run.
        inapplicable: gives the reason why it says nothing about an artifact, or None where it applies.
        to_last_slot: it looks at the end of the cache, so the judged sequence has to reach there.
        along: it looks at positions of the judged sequence in the plan's calls: those of the report's plot.
        in_rows: it runs the rows of the context.
        calls: gives the calls in which it failed, where one row can be fed with them.
        unlocated: where it has none, why not.
        by_name: it runs only when it is asked for: it is about a use that not every artifact has.
    """

    name: str
    kind: Kind
    function: CheckFunction
    inapplicable: Applicable = lambda context: None
    to_last_slot: bool = False
    along: bool = False
    in_rows: bool = False
    calls: CallsOf = lambda context, figures: None
    unlocated: str = "nothing is known about a place or a cause beyond its message"
    by_name: bool = False

    def run(self, context: CheckContext) -> CheckResult:
        """Run it where it applies. An artifact that cannot be run is a bad one, and so is one whose outputs are NaN or
        infinite in any call, whatever the check is about; where eager gave the same, nothing can be said."""
        context.listen()
        try:
            outcome = self.function(context)
        except ArtifactError as error:
            return CheckResult(self, Verdict.FAIL, str(error))
        lost = context.decoder.lost
        if lost and not outcome.complaints:
            said = "NaN or infinity in the outputs of a call at position"
            own = [position for position in lost if position not in context.eager_lost]
            if own:
                outcome = replace(outcome, complaints=[f"{said} {own[0]}"])
            else:
                outcome = replace(outcome, doubts=[*outcome.doubts, f"{said} {lost[0]}, of eager PyTorch's too"])
        return outcome.result(self)
