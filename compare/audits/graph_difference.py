"""What differs between two ONNX graphs, node by node: those of a bundle's exporter have names that stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from blockexport.export.bundle.onnx_file import read_onnx
from blockexport.models.wording import listed


@dataclass(frozen=True)
class GraphDifference:
    """Names of nodes, and of constants kept in the graph, of two files.

    Attributes:
        added: those that the second has alone.
        removed: those that the first has alone.
        changed: by name, what differs, as a clause.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: Mapping[str, str]


def graph_difference(one: Path, other: Path) -> GraphDifference:
    """How the graph in the file `other` differs from that in `one`. Weights beside them are not looked at.

    Raises:
        UsageError: a file is not there, or is not ONNX.
    """
    ours, theirs = (_parts(read_onnx(path, "Export the bundle again")) for path in (one, other))
    both = [name for name in ours if name in theirs]
    clauses = {name: "; ".join(_clauses(ours[name], theirs[name])) for name in both}
    return GraphDifference(
        tuple(name for name in theirs if name not in ours),
        tuple(name for name in ours if name not in theirs),
        {name: clause for name, clause in clauses.items() if clause},
    )


_Part = Mapping[str, str | bytes]
"""What a node or a constant is made of, by name; text is shown."""


def _parts(model: onnx.ModelProto) -> dict[str, _Part]:
    parts: dict[str, _Part] = {}
    for node in model.graph.node:
        known = {"operator": f"{node.domain}:{node.op_type}" if node.domain else node.op_type}
        known |= {"inputs": listed(node.input, len(node.input)), "outputs": listed(node.output, len(node.output))}
        values = {f"attribute {a.name}": a.SerializeToString(deterministic=True) for a in node.attribute}
        parts[node.name or next(iter(node.output), "")] = {**known, **values}
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            parts[tensor.name] = {"constant": tensor.SerializeToString(deterministic=True)}
    return parts


def _clauses(one: _Part, other: _Part) -> Iterator[str]:
    for name in sorted({*one, *other}):
        a, b = one.get(name), other.get(name)
        if a != b:
            yield f"{name} {a} and {b}" if isinstance(a, str) and isinstance(b, str) else name
