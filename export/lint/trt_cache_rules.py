"""Rules on how a cache is written: what TensorRT updates in place, and what it copies, mixes up or refuses."""

from __future__ import annotations

from collections.abc import Iterator

from blockexport.export.bundle.dataflow.cache_flow import CacheFlow
from blockexport.export.bundle.dataflow.flat_graph import FlatNode
from blockexport.export.lint.lint_finding import Fate, Trap

_FORM_ONLY = ("Shape", "Size")  # operators that read a value's form and none of its content


def cache_writes(flow: CacheFlow) -> Iterator[Trap]:
    """Every TensorScatter by itself."""
    for node in flow.graph.of("TensorScatter"):
        yield from _form(flow, node)
        yield from _start(flow, node)
    for past, writes in flow.written.items():
        if len(writes) > 1 and past in flow.graph.inputs:
            yield Trap(
                "several-writes", Fate.LOUD, past, f"{len(writes)} TensorScatter nodes write into this one cache",
                "Write once: concatenate the updates first",
            )  # fmt: skip


def _form(flow: CacheFlow, node: FlatNode) -> Iterator[Trap]:
    graph, past, present = flow.graph, node.input(0), str(node.proto.output[0])
    if node.text("mode", "linear") == "circular":
        yield Trap(
            "circular-cache", Fate.LOUD, node.label, "mode=circular is not supported",
            "Use mode=linear and a cache as long as the longest sequence",
        )  # fmt: skip
    axis = node.integer("axis", -2)
    sizes = graph.sizes_of(past)
    if sizes is not None and axis not in (-2, len(sizes) - 2):
        yield Trap(
            "cache-axis", Fate.LOUD, node.label, f"it writes along axis {axis}, and only the last but one is supported",
            "Lay the cache out as [batch, heads, slots, features] and write with axis=-2",
        )  # fmt: skip
    elif past in graph.inputs and graph.length(past, -2) is None:
        yield Trap(
            "cache-length", Fate.LOUD, node.label, "the number of slots of {} is not a constant",
            "Declare the cache's length as a number on the graph's inputs and outputs", (past,),
        )  # fmt: skip
    if past not in graph.inputs:
        yield Trap(
            "cache-not-input", Fate.LOUD, node.label, "it writes into {}, which is not a graph input",
            "Pass the cache in as a graph input and write into that", (past,),
        )  # fmt: skip
    if present not in graph.outputs:
        yield Trap(
            "cache-not-output", Fate.LOUD, node.label, "its output {} is not a graph output",
            "Make the written cache a graph output as it is, without an Identity or Cast after it", (present,),
        )  # fmt: skip


def _start(flow: CacheFlow, node: FlatNode) -> Iterator[Trap]:
    """Writes at the same slots whatever the inputs say, unless they fill the whole cache."""
    graph, slots, new = flow.graph, flow.graph.length(node.input(0), -2), flow.graph.length(node.input(1), -2)
    if slots is not None and slots == new:
        return
    fate = Fate.LOUD if node.bodies else Fate.SILENT  # in a body the cache is no input of the network
    remedy = "Give the first position of each row as write_indices"
    if not node.input(2):
        problem = "without write_indices every call writes at slot 0, over the tokens before it"
        yield Trap("no-write-indices", fate, node.label, problem, remedy)
    elif not any(
        value not in graph.producer and graph.constant(value) is None
        for value in graph.upstream(node.input(2), FlatNode.data_inputs)
    ):
        problem = "its write_indices {} depend on no input: every call writes at the same slots, over the tokens before"
        yield Trap("no-write-indices", fate, node.label, problem, remedy, (node.input(2),))


def cache_pairs(flow: CacheFlow) -> Iterator[Trap]:
    """Every cache output has to be its own input, written in place."""
    for present, past in flow.pairs.items():
        made_by = flow.graph.producer.get(present)
        if made_by is None:
            continue
        if made_by.op_type == "TensorScatter":
            other = made_by.input(0)
            if other != past and other in flow.graph.inputs:
                yield Trap(
                    "cache-swapped", Fate.SILENT, made_by.label,
                    "{} is written over {}, and by its name it is the next state of {}",
                    "Write each cache into the output of the same name", (present, other, past),
                )  # fmt: skip
            continue
        origin = _origin(flow, present, past)
        if origin is not None:
            yield Trap(
                "cache-copied", Fate.SILENT, made_by.label, origin[0],
                "Write the cache with TensorScatter (opset 24), and let its output be the graph output",
                (present, *origin[1:]),
            )  # fmt: skip


def _origin(flow: CacheFlow, present: str, past: str) -> tuple[str, ...] | None:
    """What a cache output is instead of an update in place; None where a rule on the write says it already."""
    graph, moved = flow.graph, list(flow.moved_from(present))
    for value in moved:
        made_by = graph.producer.get(value)
        if made_by is not None and made_by.op_type == "TensorScatter":
            if value not in graph.outputs:
                return None  # cache-not-output
            return "{} is a copy of the written cache {}, made anew at every step", value
    if any(value == past for value in moved):
        return "{} is a copy of {} with changes, not an update in place: the whole cache is copied at every step", past
    return "{} is made anew at every step, and not by an update of {} in place", past


def stale_reads(flow: CacheFlow) -> Iterator[Trap]:
    """A cache is written in place, so whoever reads it as it was before may find it changed."""
    graph = flow.graph
    for past in flow.written:
        if past not in graph.inputs:
            continue
        for node in graph.readers.get(past, []):
            writes = node.op_type == "TensorScatter" and past not in list(node.proto.input)[1:]
            if writes or node.op_type in _FORM_ONLY or past not in node.data_inputs():
                continue
            yield Trap(
                "stale-cache", Fate.CRASH if node.op_type == "Attention" else Fate.ERRATIC, node.label,
                "it reads {} as it was before this step's write, though the write happens in place",
                "Read the output of TensorScatter", (past,),
            )  # fmt: skip
