"""Rules on the Attention operator: what TensorRT's parser drops, takes apart or refuses."""

from __future__ import annotations

from collections.abc import Iterator

from blockexport.export.bundle.dataflow.cache_flow import CacheFlow
from blockexport.export.bundle.dataflow.flat_graph import FlatNode
from blockexport.export.lint.lint_finding import Fate, Trap

_K, _V, _MASK, _PAST_KEY, _PAST_VALUE, _NONPAD = 1, 2, 3, 4, 5, 6  # inputs of Attention


def _fate(node: FlatNode) -> Fate:
    # An attention in a body that is chosen or repeated while the network runs is built in rare cases only.
    return Fate.ERRATIC if node.bodies else Fate.SILENT


def _over_cache(flow: CacheFlow, node: FlatNode) -> bool:
    return any(flow.holds_cache(node.input(index)) for index in (_K, _V) if node.input(index))


def kv_lengths(flow: CacheFlow) -> Iterator[Trap]:
    """A number of valid keys."""
    for node in flow.graph.of("Attention"):
        if node.input(_NONPAD):
            yield Trap(
                "nonpad-kv-seqlen", _fate(node), node.label,
                "nonpad_kv_seqlen limits how many cached keys count, and TensorRT's parser drops it: "
                "unwritten cache slots would be attended to",
                "Give the limit as a boolean mask made from position_ids",
            )  # fmt: skip


def window(flow: CacheFlow) -> Iterator[Trap]:
    """A window as an attribute."""
    for node in flow.graph.of("Attention"):
        for name in ("left_window_size", "right_window_size"):
            size = node.integer(name, -1)
            if size != -1:
                yield Trap(
                    "attention-window", _fate(node), node.label,
                    f"{name}={size} is dropped by TensorRT's parser: every query would see the whole cache",
                    "Put the sliding window into the boolean mask",
                )  # fmt: skip


def causal_over_cache(flow: CacheFlow) -> Iterator[Trap]:
    """A triangle that does not know where the queries are."""
    for node in flow.graph.of("Attention"):
        if node.integer("is_causal", 0) and _over_cache(flow, node):
            yield Trap(
                "causal-cache", Fate.LOUD if node.input(_MASK) else _fate(node), node.label,
                "is_causal over a static cache anchors the triangle at slot 0, so a decode step would see the first "
                "token only",
                "Leave is_causal out and give a boolean mask made from position_ids",
            )  # fmt: skip


def scale(flow: CacheFlow) -> Iterator[Trap]:
    """A scale that TensorRT puts on the cache."""
    for node in flow.graph.of("Attention"):
        value = node.number("scale", None)
        if value != 1.0 and _over_cache(flow, node):
            said = "no scale, which means 1/sqrt(head_dim)," if value is None else f"scale={value:g}"
            yield Trap(
                "attention-scale", _fate(node), node.label,
                f"{said} makes TensorRT's parser multiply the query and the whole cached key tensor by its square root "
                "in the graph's type: at every step all slots are rounded anew, and read and written once more",
                "Scale the query before attention and set scale=1.0",
            )  # fmt: skip


def form(flow: CacheFlow) -> Iterator[Trap]:
    """What is refused, but late."""
    for node in flow.graph.of("Attention"):
        for problem, remedy in _unsupported(flow, node):
            said = f"{problem}, which TensorRT does not take"
            yield Trap("attention-form", Fate.LOUD, node.label, said, remedy)
        if node.bodies:
            yield Trap(
                "attention-form", Fate.ERRATIC, node.label,
                "it is in a body that is chosen or repeated while the graph runs, of which TensorRT takes few",
                "Take it out of the If, Loop or Scan",
            )  # fmt: skip


def _unsupported(flow: CacheFlow, node: FlatNode) -> Iterator[tuple[str, str]]:
    if node.input(_PAST_KEY) or node.input(_PAST_VALUE):
        yield "past_key and past_value are given", "Write the cache with TensorScatter"
    if sum(bool(name) for name in node.proto.output) > 1:
        yield "it has more than one output", "Write the cache with TensorScatter"
    if node.number("softcap", 0.0) != 0.0:
        yield "softcap is set", "This model cannot be built in TensorRT with the Attention operator"
    if node.integer("softmax_precision", None) is not None:
        yield "softmax_precision is set", "Leave it out: softmax precision is the backend's own"
    columns, slots = flow.graph.length(node.input(_MASK), -1), flow.graph.length(node.input(_K), -2)
    if columns is not None and slots is not None and 1 != columns < slots:
        yield f"its mask covers {columns} of {slots} slots", "Give a mask as wide as the cache"
