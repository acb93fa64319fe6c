"""The types that a graph declares, along the residual stream, the norms, RoPE, attention, the cache and the head.

A file that was asked for in half precision may hold float32 weights, take its norm statistics in half, or widen the
whole stream between casts. The audit reads that off the graph; nothing is run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from blockexport.compare.audits.sites_by_name import map_sites
from blockexport.compare.core.figures import Figures
from blockexport.models.config.model_config import NormType
from blockexport.models.precision import Precision
from blockexport.models.quantised_matrix import SCALES

NORMS = {"RMSNormalization": (1,), "LayerNormalization": (1, 2)}
"""Operators that are norms, and which of their inputs are weights."""

NORM_OPERATORS: dict[NormType, str] = {"rms_norm": "RMSNormalization", "layer_norm": "LayerNormalization"}
"""What each kind of norm is exported as."""

_BOOLEAN = frozenset(("LessOrEqual", "Less", "Greater", "GreaterOrEqual", "Equal", "And", "Or", "Not"))
_SECOND_INPUT = frozenset(("Where", "DequantizeLinear"))
_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_FLOATS = (*_HALVES, ir.DataType.FLOAT, ir.DataType.DOUBLE)


@dataclass(frozen=True)
class TypeRow:
    """A role in the graph and the types found in it, with how many values have each; `wanted` is what it should be."""

    role: str
    found: dict[str, int]
    wanted: str


@dataclass(frozen=True)
class TypeAudit(Figures):
    """All rows, the number of Casts between floating types, and `problems`: a sentence for each row that is wrong."""

    rows: tuple[TypeRow, ...]
    casts: int

    @property
    def found(self) -> dict[str, dict[str, int]]:
        """For each role in the graph how many values have which type."""
        return {row.role: row.found for row in self.rows}

    def to_json(self) -> dict[str, Any]:
        """Each role is a key of its own."""
        return {"casts": self.casts, **self.found}

    @property
    def problems(self) -> list[str]:
        """In words; empty when the graph is what it was asked to be."""
        return [
            f"{row.role}: {', '.join(f'{count} in {kind}' for kind, count in row.found.items())}, wanted {row.wanted}"
            for row in self.rows
            if not set(row.found) <= {row.wanted}
        ]


def audit_types(graph: ir.Graph, precision: Precision, num_hidden_layers: int, *, has_rope: bool = True) -> TypeAudit:
    """Check a decoder's graph against the precision that it was asked for.

    Args:
        graph: of the artifact.
        precision: of weights, activations and cache. Norm statistics and RoPE are float32 whatever it is.
        num_hidden_layers: L.
        has_rope: whether the model has it in some layer.
    """
    types = declared_types(graph)
    sites = map_sites(graph, num_hidden_layers)
    own, single = ir.DataType(precision.element.onnx).name, ir.DataType.FLOAT.name
    norms, attentions = [node for node in graph if node.op_type in NORMS], _nodes(graph, "Attention")

    def of(values: Iterable[ir.Value | None]) -> dict[str, int]:
        return _count(types[str(value.name)] for value in values if value is not None)

    caches = [v for v in (*graph.inputs, *graph.outputs) if str(v.name).startswith(("past_key_values.", "present."))]
    rows = [
        TypeRow("weights", _count(_weight_types(graph, types)), own),
        TypeRow("residual stream", _count(types[name] for name in sites.streams if name in types), own),
        TypeRow("norm inputs and outputs", of(v for n in norms for v in _around(n)), own),
        TypeRow("norm statistics", _count(_statistics(graph, types)), single),
        TypeRow("RoPE", of(node.outputs[0] for node in _nodes(graph, "RotaryEmbedding")), single),
        TypeRow("attention inputs and output", of(v for n in attentions for v in (*n.inputs[:3], n.outputs[0])), own),
        TypeRow("cache", of(caches), own),
        TypeRow("output", of(graph.outputs[:1]), own),
    ]
    rows = [row for row in rows if row.role != "RoPE" or has_rope or row.found]
    softmax = _count(_softmax_types(graph))
    if softmax:
        # Where the operator leaves it open, softmax has the backend's precision, and nothing is said here.
        rows.append(TypeRow("softmax", softmax, single))
    return TypeAudit(tuple(rows), sum(1 for node in graph if _narrows_or_widens(node, types)))


def declared_types(graph: ir.Graph) -> dict[str, ir.DataType]:
    """The type of every value, which the operators determine from the inputs' and weights' types."""
    types: dict[str, ir.DataType] = {}
    for value in (*graph.inputs, *graph.initializers.values()):
        if value.name is not None and value.dtype is not None:
            types[value.name] = value.dtype
    for node in graph:
        for output in node.outputs:
            types[str(output.name)] = _output_type(node, types)
    return types


def _output_type(node: ir.Node, types: dict[str, ir.DataType]) -> ir.DataType:
    if node.op_type == "Cast":
        return ir.DataType(node.attributes["to"].as_int())
    if node.op_type == "Shape":
        return ir.DataType.INT64
    if node.op_type in _BOOLEAN:
        return ir.DataType.BOOL
    if node.op_type in ("Constant", "ConstantOfShape"):
        attribute = node.attributes.get("value")
        return ir.DataType.FLOAT if attribute is None else attribute.as_tensor().dtype
    source = node.inputs[1 if node.op_type in _SECOND_INPUT else 0]
    return types.get("" if source is None else str(source.name), ir.DataType.UNDEFINED)


def _count(types: Iterable[ir.DataType]) -> dict[str, int]:
    return dict(Counter(dtype.name for dtype in types))


def _nodes(graph: ir.Graph, op_type: str) -> list[ir.Node]:
    return [node for node in graph if node.op_type == op_type]


def _weight_types(graph: ir.Graph, types: dict[str, ir.DataType]) -> Iterator[ir.DataType]:
    """Matrices and gains: what the products, the lookup and the norms read, from the file or of its codes."""
    seen = set()
    for node in graph:
        places = {"Gemm": (1, 2), "MatMul": (1,), **NORMS, "Gather": (0,)}.get(node.op_type, ())
        for value in (node.inputs[i] for i in places if i < len(node.inputs)):
            # Scales of codes may have another type: they are cast.
            if value is None or str(value.name).endswith(SCALES) or value.name in seen:
                continue
            maker = value.producer()
            stored = value.is_initializer() or (maker is not None and maker.op_type == "DequantizeLinear")
            kind = types.get(str(value.name), ir.DataType.UNDEFINED)
            if stored and kind in _FLOATS:
                seen.add(value.name)
                yield kind


def _around(norm: ir.Node) -> tuple[ir.Value | None, ir.Value]:
    """What enters a norm and what leaves it; a LayerNorm in half precision is one between casts."""
    entering, leaving = norm.inputs[0], norm.outputs[0]
    if norm.op_type != "LayerNormalization" or entering is None:
        return entering, leaving
    widens, users = entering.producer(), [user for user, _ in leaving.uses()]
    narrows = len(users) == 1 and users[0].op_type == "Cast"
    is_cast = widens is not None and widens.op_type == "Cast"
    return widens.inputs[0] if widens is not None and is_cast else entering, users[0].outputs[0] if narrows else leaving


def _statistics(graph: ir.Graph, types: dict[str, ir.DataType]) -> Iterator[ir.DataType]:
    """Of a fused norm what `stash_type` says; of one spelled out, the type of its mean."""
    for node in graph:
        if node.op_type in NORMS:
            stash = node.attributes.get("stash_type")
            yield ir.DataType.FLOAT if stash is None else ir.DataType(stash.as_int())
        elif node.op_type == "ReduceMean":
            yield types[str(node.outputs[0].name)]


def _softmax_types(graph: ir.Graph) -> Iterator[ir.DataType]:
    for node in graph:
        precision = node.attributes.get("softmax_precision")
        if node.op_type == "Attention" and precision is not None and precision.as_int():
            yield ir.DataType(precision.as_int())


def _narrows_or_widens(node: ir.Node, types: dict[str, ir.DataType]) -> bool:
    if node.op_type != "Cast" or node.inputs[0] is None:
        return False
    before, after = types[str(node.inputs[0].name)], types[str(node.outputs[0].name)]
    return before in _FLOATS and after in _FLOATS and before != after
