"""What a lint rule says about a graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from blockexport.export.lint.layer_groups import tell


class Fate(StrEnum):
    """What a runtime does with a graph that breaks a rule."""

    SILENT = "builds without a word"
    LOUD = "stops with an error"
    CRASH = "crashes"
    SLOW = "runs it several times as slowly as it could"
    ERRATIC = "stops, crashes or builds without a word, as it happens"


@dataclass(frozen=True)
class Trap:
    """One broken rule at one node.

    Attributes:
        rule: its name.
        fate: what the runtime does.
        node: the node's label, or a value's name.
        problem: a sentence with a `{}` for each of `names`.
        remedy: what to do about it.
        names: the values it speaks of.
    """

    rule: str
    fate: Fate
    node: str
    problem: str
    remedy: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class LintFinding:
    """One broken rule, at every node where it is broken in the same way."""

    rule: str
    fate: Fate
    nodes: tuple[str, ...]
    problem: str
    remedy: str

    def __str__(self) -> str:
        runtime = "ONNX Runtime" if self.fate is Fate.SLOW else "TensorRT"
        return f"{self.problem}. {runtime} {self.fate.value}. {self.remedy}"


def gather(traps: Iterable[Trap]) -> list[LintFinding]:
    """Findings in order of their first trap; traps that differ by names alone are one."""
    groups: dict[tuple[str, Fate, str, str], list[Trap]] = {}
    for trap in traps:
        groups.setdefault((trap.rule, trap.fate, trap.problem, trap.remedy), []).append(trap)
    findings = []
    for (rule, fate, problem, remedy), members in groups.items():
        told = tell("{}: " + problem, [(trap.node, *trap.names) for trap in members])
        findings.append(LintFinding(rule, fate, tuple(trap.node for trap in members), told, remedy))
    return findings
