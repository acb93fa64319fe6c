"""What a check is: a function of a `CheckContext`, marked with `@check`, that says pass, fail or not judged.

`compare/checks/catalogue.py` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

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


CheckFunction = Callable[["CheckContext"], CheckResult]


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
