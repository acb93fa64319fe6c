"""The types that the artifact's graph declares, against the precision that it was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from blockexport.compare.audits.type_audit import audit_types
from blockexport.compare.core.check import Check, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.figures import Figures
from blockexport.models.precision import Precision


def _no_graph(context: CheckContext) -> str | None:
    if context.decoder.foreign is not None:
        return "another tool's graph has types of its own choice"
    return "this backend runs no ONNX graph" if context.graph is None else None


@dataclass(frozen=True)
class TypeFigures(Figures):
    """Casts between floating types, and for each role in the graph how many values have which type."""

    casts: int
    found: dict[str, dict[str, int]]

    def to_json(self) -> dict[str, Any]:
        """Each role is a key of its own."""
        return {"casts": self.casts, **self.found}


@partial(
    Check,
    "types",
    Kind.TYPES,
    inapplicable=_no_graph,
    unlocated="this check reads the graph and runs nothing: the place is in its message",
)
def types(context: CheckContext) -> Outcome:
    """Everything is in the precision asked for, and norm statistics and RoPE are in float32."""
    assert context.graph is not None
    audit = audit_types(context.graph(), Precision.of(context.decoder.dtype), context.config.num_hidden_layers)
    figures = TypeFigures(audit.casts, {row.role: row.found for row in audit.rows})
    own = str(context.decoder.dtype).removeprefix("torch.")
    message = f"weights, stream, attention and cache in {own}, norm statistics in float32"
    unseen = [f"no {row.role} found in the graph" for row in audit.rows if not row.found]
    return Outcome(message, sum(sum(row.found.values()) for row in audit.rows), audit.problems, unseen, figures)
