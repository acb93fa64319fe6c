"""Rules on names and number types: operators that TensorRT takes for others, and arithmetic in too few bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import onnx

from blockexport.export.bundle.dataflow.attribute_kinds import STANDARD_DOMAINS
from blockexport.export.bundle.dataflow.cache_flow import CacheFlow
from blockexport.export.bundle.dataflow.flat_graph import FlatGraph, FlatNode
from blockexport.export.bundle.dataflow.stored_values import values_of
from blockexport.export.lint.lint_finding import Fate, Trap
from blockexport.models.element_types import ELEMENT_TYPES

_HALF = {one.onnx: one.name for one in ELEMENT_TYPES if one.is_float and one.itemsize == 2}
_SUMS = ("ReduceMean", "ReduceSum", "ReduceSumSquare")  # not ReduceL2, which TensorRT widens by itself
_SAME_VALUES = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten")


def foreign_domain(flow: CacheFlow) -> Iterator[Trap]:
    """Operators of other standards."""
    for node in flow.graph.nodes:
        if node.proto.domain not in STANDARD_DOMAINS:
            domain = node.proto.domain.replace("{", "{{").replace("}", "}}")
            yield Trap(
                "foreign-domain", Fate.SILENT, node.label,
                f"the operator is {domain}'s, and TensorRT's parser goes by the bare name, so a namesake with "
                "other inputs or another meaning is taken for the standard operator",
                "Export with standard ONNX operators only",
            )  # fmt: skip


@cache
def _standard_operators() -> frozenset[str]:
    return frozenset(schema.name for schema in onnx.defs.get_all_schemas() if schema.domain in STANDARD_DOMAINS)


def function_names(model: onnx.ModelProto) -> Iterator[Trap]:
    """Local functions that TensorRT, going by their bare names, takes for something else."""
    names = [function.name for function in model.functions]
    for function in model.functions:
        if function.name in _standard_operators():
            problem = "a local function has the name of a standard operator, and TensorRT runs the operator"
        elif names.count(function.name) > 1:
            problem = "local functions of several domains or overloads share this name, and TensorRT runs one for all"
        else:
            continue
        place = f"function {function.domain}::{function.name}"
        place += f":{function.overload}" if function.overload else ""
        yield Trap("function-name", Fate.SILENT, place, problem, "Give each local function a name of its own")


def half_statistics(flow: CacheFlow) -> Iterator[Trap]:
    """Means of squares, as an operator's type or spelled out."""
    graph = flow.graph
    for node in graph.of("RMSNormalization", "LayerNormalization", "GroupNormalization"):
        kind = node.integer("stash_type", 1)
        if kind in _HALF:
            yield _statistics(node, f"stash_type={_HALF[kind]} takes the mean of squares", kind, "Set stash_type=1")
    for node in graph.of(*_SUMS):
        kind = graph.type_of(node.input(0)) if node.op_type == "ReduceSumSquare" else _narrowest_square(graph, node)
        if kind in _HALF:
            yield _statistics(node, "it takes the mean of squares", kind, "Cast to float32 before squaring")


def _statistics(node: FlatNode, said: str, kind: int, remedy: str) -> Trap:
    effect = "overflows from 256 on" if kind == onnx.TensorProto.FLOAT16 else "has eight bits of precision"
    return Trap("norm-statistics", Fate.SILENT, node.label, f"{said} in {_HALF[kind]}, which {effect}", remedy)


def _narrowest_square(graph: FlatGraph, reduction: FlatNode) -> int:
    """The half-precision type that the squares under a reduction pass through, the last one first; 0 without one."""
    values = _passed_on(graph, reduction.input(0), _SAME_VALUES)
    node = graph.producer.get(values[-1])
    if node is None or not _is_square(graph, node):
        return 0
    return next((kind for value in values if (kind := graph.type_of(value)) in _HALF), 0)


def _is_square(graph: FlatGraph, node: FlatNode) -> bool:
    if node.op_type == "Mul":
        return _unnamed(graph, node.input(0)) == _unnamed(graph, node.input(1))
    exponent = graph.constant(_unnamed(graph, node.input(1))) if node.op_type == "Pow" else None
    return exponent is not None and _equals_two(exponent)


def _unnamed(graph: FlatGraph, name: str) -> str:
    """The value that Identity and Cast nodes pass on."""
    return _passed_on(graph, name, ("Identity", "Cast"))[-1]


def _passed_on(graph: FlatGraph, name: str, operators: tuple[str, ...]) -> list[str]:
    """`name` and what it is made from by some operators, value by value."""
    return list(graph.upstream(name, lambda node: [node.input(0)] if node.op_type in operators else ()))


def _equals_two(tensor: onnx.TensorProto) -> bool:
    values = values_of(tensor)
    return values is not None and bool(np.all(values == 2))


def half_rope(flow: CacheFlow) -> Iterator[Trap]:
    """Angles, or what is looked up by them, in too few bits."""
    graph = flow.graph
    remedy = "Cast the heads to float32, turn them with float32 tables, and cast back"
    for node in graph.of("RotaryEmbedding"):
        kind = next((kind for index in (1, 2) if (kind := graph.type_of(node.input(index))) in _HALF), None)
        if kind is not None:
            problem = f"its tables are {_HALF[kind]}, whose steps are as wide as the angles of late positions"
            yield Trap("rope-tables", Fate.SILENT, node.label, problem, remedy)
    for node in graph.of("Cos", "Sin"):
        kind = graph.type_of(node.input(0))
        if kind in _HALF:
            problem = f"its angles are {_HALF[kind]}, whose steps at late positions are wider than a turn"
            yield Trap("rope-tables", Fate.SILENT, node.label, problem, "Compute angles in float32")
