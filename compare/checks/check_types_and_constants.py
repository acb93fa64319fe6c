"""What the artifact's graph declares, with nothing run: types, and the numbers that come from the config."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from blockexport.compare.audits.constant_audit import audit_constants
from blockexport.compare.audits.type_audit import audit_types
from blockexport.compare.core.check import Applicable, Check, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.models.precision import Precision


def _unless(another_tools: str) -> Applicable:
    def no_graph(context: CheckContext) -> str | None:
        if context.decoder.foreign is not None:
            return another_tools
        return "this backend runs no ONNX graph" if context.graph is None else None

    return no_graph


@partial(
    Check,
    "types",
    Kind.TYPES,
    inapplicable=_unless("another tool's graph has types of its own choice"),
    unlocated="this check reads the graph and runs nothing: the place is in its message",
)
def types(context: CheckContext) -> Outcome:
    """Everything is in the precision asked for, and norm statistics and RoPE are in float32."""
    assert context.graph is not None
    config, precision = context.config, Precision.of(context.decoder.dtype)
    layers = config.num_hidden_layers
    audit = audit_types(context.graph(), precision, layers, has_rope=any(map(config.has_rope, range(layers))))
    own = str(context.decoder.dtype).removeprefix("torch.")
    message = f"weights, stream, attention and cache in {own}, norm statistics in float32"
    unseen = [f"no {role} found in the graph" for role, found in audit.found.items() if not found]
    return Outcome(message, sum(sum(found.values()) for found in audit.found.values()), audit.problems, unseen, audit)


@partial(
    Check,
    "constants",
    Kind.CONTENT,
    inapplicable=_unless("another tool's graph keeps its constants in its own way"),
)
def constants(context: CheckContext) -> Outcome:
    """They are the config's in every layer, and each place reads the weight that has its name."""
    assert context.graph is not None
    wanted = replace(context.decoder.interface, config=context.config)  # the checkpoint's own, not the artifact's
    audit = audit_constants(context.graph(), wanted)
    complaints = audit.problems + audit.unseen if audit.problems else []
    told = ", ".join(f"{count} {kind}" for kind, count in audit.counts.items())
    return Outcome(f"as the config asks: {told}", sum(audit.counts.values()), complaints, audit.unseen, audit)
