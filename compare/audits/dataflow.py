"""Which values of a graph are made from which."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

SUMS = ("SkipSimplifiedLayerNormalization", "SkipLayerNormalization")
"""Output 3 is the sum, output 0 its norm."""

FUSED = {"GroupQueryAttention": {1: (1, 3), 2: (2, 4)}, "Attention": {1: (1, 4), 2: (2, 5)}}
"""Which inputs an attention operator's cache outputs are made of."""

_PASSING = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten")
_PRODUCTS = ("MatMul", "Gemm", "MatMulNBits", "FusedMatMul")


class Dataflow:
    """A graph's values, who makes and who reads them, and which depend on no input.

    Args:
        nodes: of the graph, in order. Sums inside fused norms get a name, so that they can be watched.
        initializers: their names.
    """

    def __init__(self, nodes: Iterable[onnx.NodeProto], initializers: Iterable[str]) -> None:
        self.maker: dict[str, onnx.NodeProto] = {}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        self.fixed = set(initializers)
        for at, node in enumerate(nodes):
            if node.op_type in SUMS and len(node.output) < 4:
                node.output.extend([""] * (3 - len(node.output)))
                node.output.append(f"sum of {node.name or at}")
            if all(not name or name in self.fixed for name in node.input):
                self.fixed.update(node.output)
            for name in node.output:
                if name:
                    self.maker[name] = node
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(node)

    def label(self, value: str) -> str:
        """Operator and name of a value's node; empty where it has none."""
        node = self.maker.get(value)
        return "" if node is None else f"{node.op_type} {node.name or value}"

    def made_from(self, value: str) -> Iterator[str]:
        """What a value is made from in one step, weights and shapes aside."""
        node = self.maker.get(value)
        if node is None or node.op_type in ("Shape", "Size"):
            return
        places = FUSED.get(node.op_type, {}).get(list(node.output).index(value), range(len(node.input)))
        for place in places:
            if place < len(node.input) and node.input[place] and node.input[place] not in self.fixed:
                yield node.input[place]

    def upstream(self, value: str, *ends: str) -> list[str]:
        """A value and what it is made from, nearest first, up to and without `ends` and whatever their nodes make."""
        stop = {name for end in ends for name in (self.maker[end].output if end in self.maker else [end])}
        stop |= set(ends)
        queue, seen = [value], {value}
        for name in queue:
            for source in self.made_from(name):
                if source not in seen and source not in stop:
                    seen.add(source)
                    queue.append(source)
        return queue

    def nearest(self, value: str, wanted: Callable[[onnx.NodeProto], bool], *ends: str) -> onnx.NodeProto | None:
        """The nearest node upstream, the one that makes the value included, that `wanted` accepts."""
        nodes = (self.maker[name] for name in self.upstream(value, *ends) if name in self.maker)
        return next((node for node in nodes if wanted(node)), None)

    def flows_into(self, value: str, op_type: str) -> onnx.NodeProto | None:
        """The nearest node of an operator that is made from a value."""
        queue = [value]
        for name in queue:
            for node in self.readers.get(name, []):
                if node.op_type == op_type:
                    return node
                queue += [output for output in node.output if output not in queue]
        return None

    def is_product(self, node: onnx.NodeProto) -> bool:
        """A matrix product with weights."""
        return node.op_type in _PRODUCTS and node.input[0] not in self.fixed and node.input[1] in self.fixed

    def linear(self, node: onnx.NodeProto) -> str:
        """What a product gives, its bias added where that is a node of its own."""
        value = str(node.output[0])
        for reader in self.readers.get(value, []):
            if reader.op_type == "Add" and any(name in self.fixed for name in reader.input):
                return str(reader.output[0])
        return value

    def passed_on(self, value: str) -> list[str]:
        """A value under each name it has after nodes that only move or cast it."""
        found = [value]
        for name in found:
            found += [node.output[0] for node in self.readers.get(name, []) if node.op_type in _PASSING]
        return found
