"""The numbers of the artifact's graph that come from the config: epsilons, attention scale, windows, RoPE tables."""

from __future__ import annotations

from blockexport.compare.audits.constant_audit import audit_constants
from blockexport.compare.core.check import Outcome, check
from blockexport.compare.core.context import CheckContext


def _no_graph(context: CheckContext) -> str | None:
    if context.decoder.foreign is not None:
        return "another tool's graph keeps its constants in its own way"
    return "this backend runs no ONNX graph" if context.graph is None else None


@check("constants", "epsilons, attention scale, windows, RoPE tables", inapplicable=_no_graph)
def constants(context: CheckContext) -> Outcome:
    """They are the config's in every layer, and each place reads the weight that has its name."""
    assert context.graph is not None
    decoder = context.decoder
    audit = audit_constants(context.graph(), context.config, decoder.max_sequence_length, headless=decoder.headless)
    figures = {"problems": audit.problems, "unseen": audit.unseen, **audit.counts}
    complaints = audit.problems + audit.unseen if audit.problems else []
    told = ", ".join(f"{count} {kind}" for kind, count in audit.counts.items())
    return Outcome(f"as the config asks: {told}", sum(audit.counts.values()), complaints, audit.unseen, figures)
