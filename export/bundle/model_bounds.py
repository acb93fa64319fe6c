"""What an ONNX file must not hold before anything follows its graph: names that are no text, weights at places that are
no numbers, and local functions that call each other until no memory is left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]

from blockexport.export.bundle.external_data import external_places
from blockexport.models.errors import UsageError

INLINED_NODES = 200_000
"""The most nodes that are followed once every call of a local function is replaced by its body."""

_Key = tuple[str, str, str]  # domain, name, overload


def check_bounds(model: onnx.ModelProto, path: Path) -> None:
    """Refuse a model that cannot be followed.

    Raises:
        UsageError: a name is not UTF-8, its local functions stand for more than `INLINED_NODES` nodes, or the place of
            external data can be read in more than one way.
    """
    broken = next(_broken_texts(model), None)
    if broken is not None:
        raise UsageError(f"{path} holds a name that is not UTF-8 ({broken}): export it again, with names that are text")
    external_places(model, path)
    try:
        count = inlined_nodes(model)
    except RecursionError as error:
        raise UsageError(
            f"the local functions of {path} call each other deeper than can be followed: export it without them"
        ) from error
    if count > INLINED_NODES:
        raise UsageError(
            f"the local functions of {path} call each other so often that they stand for {_shown(count)} nodes, and "
            f"{INLINED_NODES:,} are followed at most: export it without local functions"
        )


def inlined_nodes(model: onnx.ModelProto) -> int:
    """How many nodes there are when every call of a local function is replaced by its body; calls in a circle, which
    never end, count once."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    counts: dict[_Key, int] = {}
    return _count(model.graph.node, functions, counts)


def _count(nodes: Iterable[onnx.NodeProto], functions: Mapping[_Key, Any], counts: dict[_Key, int]) -> int:
    total = 0
    for node in nodes:
        total += 1 + sum(_count(body.node, functions, counts) for body in _bodies(node))
        key = (node.domain, node.op_type, node.overload)
        if key in functions:
            if key not in counts:
                counts[key] = 0  # should it call itself
                counts[key] = _count(functions[key].node, functions, counts)
            total += counts[key]
    return total


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def _broken_texts(message: Any) -> Iterator[str]:
    """Every text in a message that is not UTF-8, as an expression of its bytes."""
    try:
        fields = message.ListFields()
    except UnicodeDecodeError as error:
        yield repr(error.object)
        return
    for field, value in fields:
        repeated = not isinstance(value, str | bytes) and hasattr(value, "__len__")
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if repeated else [value]:
                yield from _broken_texts(inner)
        elif field.type == FieldDescriptor.TYPE_STRING:
            for text in value if repeated else [value]:
                if isinstance(text, bytes):  # what the library gives for a text that it cannot decode
                    yield repr(text)[:80]


def _shown(count: int) -> str:
    return f"{count:,}" if count < 10**15 else f"more than 10^{len(str(count)) - 1}"
