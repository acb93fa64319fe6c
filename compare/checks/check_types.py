"""The types that the artifact's graph declares, against the precision that it was asked for."""

from __future__ import annotations

from blockexport.compare.audits.type_audit import audit_types
from blockexport.compare.core.check import Outcome, check
from blockexport.compare.core.context import CheckContext
from blockexport.models.precision import Precision


def _no_graph(context: CheckContext) -> str | None:
    if context.decoder.foreign is not None:
        return "another tool's graph has types of its own choice"
    return "this backend runs no ONNX graph" if context.graph is None else None


@check("types", "the types along stream, norms, attention, cache and head", inapplicable=_no_graph)
def types(context: CheckContext) -> Outcome:
    """Everything is in the precision asked for, and norm statistics and RoPE are in float32."""
    assert context.graph is not None
    audit = audit_types(context.graph(), Precision.of(context.decoder.dtype), context.config.num_hidden_layers)
    figures = {"casts": audit.casts, **{row.role: row.found for row in audit.rows}}
    own = str(context.decoder.dtype).removeprefix("torch.")
    message = f"weights, stream, attention and cache in {own}, norm statistics in float32"
    unseen = [f"no {row.role} found in the graph" for row in audit.rows if not row.found]
    return Outcome(message, sum(sum(row.found.values()) for row in audit.rows), audit.problems, unseen, figures)
