"""The numbers of the artifact's graph that come from the config: epsilons, attention scale, windows, RoPE tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from blockexport.compare.audits.constant_audit import audit_constants
from blockexport.compare.core.check import Check, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.figures import Figures


def _no_graph(context: CheckContext) -> str | None:
    if context.decoder.foreign is not None:
        return "another tool's graph keeps its constants in its own way"
    return "this backend runs no ONNX graph" if context.graph is None else None


@dataclass(frozen=True)
class ConstantFigures(Figures):
    """What is wrong and what was not found, a sentence each, and how many of each kind were read."""

    problems: list[str]
    unseen: list[str]
    counts: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Each kind is a key of its own."""
        return {"problems": self.problems, "unseen": self.unseen, **self.counts}


@partial(Check, "constants", Kind.CONTENT, inapplicable=_no_graph)
def constants(context: CheckContext) -> Outcome:
    """They are the config's in every layer, and each place reads the weight that has its name."""
    assert context.graph is not None
    wanted = replace(context.decoder.interface, config=context.config)  # the checkpoint's own, not the artifact's
    audit = audit_constants(context.graph(), wanted)
    figures = ConstantFigures(audit.problems, audit.unseen, audit.counts)
    complaints = audit.problems + audit.unseen if audit.problems else []
    told = ", ".join(f"{count} {kind}" for kind, count in audit.counts.items())
    return Outcome(f"as the config asks: {told}", sum(audit.counts.values()), complaints, audit.unseen, figures)
