"""Which values of a graph come from a key/value cache, and which output is which cache's next state: by dataflow."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from blockexport.export.bundle.dataflow.flat_graph import FlatGraph, FlatNode
from blockexport.models.element_types import ELEMENT_TYPES
from blockexport.models.io_names import HIDDEN_STATES, past_of

# Operators whose result is made of the values of what they are given, moved, dropped, repeated or blended.
# fmt: off
_MOVERS = frozenset((
    "Add", "Cast", "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "If", "Loop",
    "Mul", "Pad", "Reshape", "Scan", "ScatterElements", "ScatterND", "Slice", "Split", "Squeeze", "Sub", "Tile",
    "Transpose", "Unsqueeze", "Where",
))
# fmt: on
# Operators that put new entries into a cache or after it.
_WRITERS = frozenset(("Concat", "ScatterElements", "ScatterND", "TensorScatter", "Where"))
_FLOATS = {one.onnx for one in ELEMENT_TYPES if one.is_float}
# Inputs of attention operators that hold keys and values; those of a GroupQueryAttention's cache are 3 and 4.
_HEADS = {"Attention": (1, 2), "GroupQueryAttention": (1, 2, 3, 4), "MultiHeadAttention": (1, 2, 6, 7)}
_PASTS = {1: 3, 2: 4}  # a GroupQueryAttention's inputs by the outputs that are their next states
_RANK = 3  # a cache has heads or rows, slots and features at least


class CacheFlow:
    """The caches of a graph.

    Attributes:
        graph: the graph.
    """

    def __init__(self, graph: FlatGraph) -> None:
        self.graph = graph

    @cached_property
    def written(self) -> dict[str, list[FlatNode]]:
        """TensorScatter nodes by the value that they write into."""
        found: dict[str, list[FlatNode]] = {}
        for node in self.graph.of("TensorScatter"):
            found.setdefault(node.input(0), []).append(node)
        return found

    @cached_property
    def pairs(self) -> dict[str, str]:
        """The cache input that each cache output is the next state of: by name, else by dataflow."""
        found = {}
        for name in self.graph.outputs:
            if name == HIDDEN_STATES:  # of a stage: what it was given, with something added
                continue
            past = self._past_by_name(name) or self._past_by_flow(name)
            if past is not None:
                found[name] = past
        return found

    @cached_property
    def inputs(self) -> set[str]:
        """Graph inputs that are caches."""
        named = {name for name in self.graph.inputs if name.startswith(("past_key", "past_value"))}
        return named | set(self.pairs.values())

    def holds_cache(self, name: str) -> bool:
        """True when a value is made from a cache, by whatever operators, with the cache's slots still in it."""
        return any(value in self.inputs or self._is_written(value) for value in self.upstream(name))

    def upstream(self, name: str) -> Iterable[str]:
        """`name` and what it is made from. An attention's result has a row per query and none per slot of its keys."""

        def through(node: FlatNode) -> Iterable[str]:
            if node.op_type in ("Shape", "Size"):
                return ()
            return [node.input(0)] if node.op_type == "Attention" else node.data_inputs()

        return self.graph.upstream(name, through)

    def moved_from(self, name: str) -> Iterable[str]:
        """`name` and what it is a copy of, in part or with something added. A written cache is a copy of its past."""

        return self.graph.upstream(name, self._moved)

    def _moved(self, node: FlatNode) -> Iterable[str]:
        if node.op_type == "TensorScatter":
            return [node.input(0)]
        return node.data_inputs() if node.op_type in _MOVERS else ()

    def _is_written(self, name: str) -> bool:
        made_by = self.graph.producer.get(name)
        return made_by is not None and made_by.op_type == "TensorScatter"

    def _past_by_name(self, output: str) -> str | None:
        if not output.startswith("present"):
            return None
        candidates = (past_of(output), output.replace("present", "past", 1))
        return next((name for name in candidates if name in self.graph.inputs), None)

    def _past_by_flow(self, output: str) -> str | None:
        """The input of the same form, whatever its length, that an output under attention is moved from."""
        made_by = self.graph.producer.get(output)
        if made_by is None:
            return None
        if made_by.op_type == "TensorScatter":
            return made_by.input(0) if made_by.input(0) in self.graph.inputs else None
        if made_by.op_type == "GroupQueryAttention":
            past = made_by.input(_PASTS.get(list(made_by.proto.output).index(output), len(made_by.proto.input)))
            return past if past in self.graph.inputs else None
        sources = [name for name in self.moved_from(output) if name in self.graph.inputs and name not in self.written]
        alike = [
            name
            for name in sources
            if self._same_form(name, output) and ({name, output} & self._attended or self._is_entered(name, output))
        ]
        # What is appended to a cache has its form as well, but not its length.
        alike.sort(key=lambda name: self.graph.sizes_of(name) != self.graph.sizes_of(output))
        return next(iter(alike), None)

    @cached_property
    def _attended(self) -> set[str]:
        """Every value that the keys or values of some Attention are made from."""
        heads = (node.input(index) for node in self.graph.of("Attention") for index in _HEADS["Attention"])
        return {value for name in heads if name for value in self.upstream(name)}

    @cached_property
    def _attended_anyhow(self) -> set[str]:
        """Every value that the keys or values of attention are made from, in one operator or spelled out."""
        heads = [node.input(at) for kind, places in _HEADS.items() for node in self.graph.of(kind) for at in places]
        heads += [node.input(0) for node in self.graph.of("Softmax")]
        heads += [name for node in self._mixers() for name in node.data_inputs()]
        return {value for name in heads if name for value in self.graph.upstream(name, FlatNode.data_inputs)}

    def _mixers(self) -> Iterable[FlatNode]:
        """Matrix products of what a Softmax gives with the values."""
        front, seen = [str(node.proto.output[0]) for node in self.graph.of("Softmax")], set[str]()
        for name in front:
            for node in self.graph.readers.get(name, []):
                if node.op_type == "MatMul":
                    yield node
                elif node.op_type in _MOVERS and str(node.proto.output[0]) not in seen:
                    seen.add(str(node.proto.output[0]))
                    front.append(str(node.proto.output[0]))

    def _is_entered(self, past: str, output: str) -> bool:
        """Whether new entries are put into a cache, or after it, on the way from an input to an output that attention
        reads, or into an output that nothing else explains."""
        ways = [name for name in self.moved_from(output) if past in self.moved_from(name)]
        makers = [self.graph.producer[name].op_type for name in ways if name in self.graph.producer]
        if not _WRITERS & set(makers):
            return False
        return bool({past, output, *ways} & self._attended_anyhow) or "Scatter" in " ".join(makers)

    def _same_form(self, one: str, other: str) -> bool:
        """Alike in type and rank, and in every size but one that both give as a number."""
        left, right = self.graph.sizes_of(one), self.graph.sizes_of(other)
        if left is None or right is None or len(left) != len(right) or len(left) < _RANK:
            return False
        kinds = {self.graph.type_of(one), self.graph.type_of(other)}
        if len(kinds) > 1 or not kinds <= _FLOATS:
            return False
        numbers = [(a, b) for a, b in zip(left, right, strict=True) if isinstance(a, int) and isinstance(b, int)]
        return sum(a != b for a, b in numbers) <= 1
