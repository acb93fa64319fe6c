"""What a check is, and the list of all of them.

A check is a function of a `CheckContext` in a file `check_*.py` of `compare/checks`, marked with `@check`. Adding a
file adds its checks; nothing else lists them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from blockexport.models.errors import UsageError

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
    """A registered check.

    `inapplicable` gives the reason why a check says nothing about an artifact, or None where it applies. `to_last_slot`
    says that it looks at the end of the cache, so the judged sequence has to reach there.
    """

    name: str
    summary: str
    order: int
    function: CheckFunction
    inapplicable: Callable[[CheckContext], str | None]
    to_last_slot: bool = False


_REGISTRY: dict[str, Check] = {}


def check(
    name: str,
    summary: str,
    *,
    order: int,
    inapplicable: Callable[[CheckContext], str | None] = lambda context: None,
    to_last_slot: bool = False,
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check under `name`, run in the order of `order`."""

    def register(function: CheckFunction) -> CheckFunction:
        assert name not in _REGISTRY, f"two checks are named {name}"
        _REGISTRY[name] = Check(name, summary, order, function, inapplicable, to_last_slot)
        return function

    return register


def all_checks() -> list[Check]:
    """Every check of `compare/checks`, in order."""
    import blockexport.compare.checks as package

    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("check_"):
            importlib.import_module(f"{package.__name__}.{module.name}")
    return sorted(_REGISTRY.values(), key=lambda entry: entry.order)


def choose_checks(names: tuple[str, ...]) -> list[Check]:
    """The checks called `names`, all when there are none.

    Raises:
        UsageError: no check has that name.
    """
    known = all_checks()
    for name in names:
        if name not in [entry.name for entry in known]:
            raise UsageError(f"no check {name!r}: there are {', '.join(entry.name for entry in known)}")
    return [entry for entry in known if not names or entry.name in names]
