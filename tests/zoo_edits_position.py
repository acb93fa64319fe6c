"""Edits that build the bug zoo's defects into an exported graph: mask, window, cache slots, RoPE.

Nothing here uses `compare/explain/defects_position.py`: the two are written independently, so that each proves the
other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from blockexport.models.block.rope import rope_table
from tests.zoo_bench import Bench, Spoil, attribute


def table(**changes: Any) -> Spoil:
    """The RoPE table of another config."""

    def spoil(bench: Bench) -> None:
        rows = bench.value("cos").shape[0]  # type: ignore[index]
        assert isinstance(rows, int)
        tables = dict(zip(("cos", "sin"), rope_table(replace(bench.config, **changes), rows), strict=True))
        for name, values in tables.items():
            new = bench.constant(values.numpy(), "float32")
            for node in bench.nodes("RotaryEmbedding"):
                node.replace_input_with(1 if name == "cos" else 2, new)

    return spoil


def rope_missing(bench: Bench) -> None:
    for node in bench.nodes("RotaryEmbedding"):
        bench.change(node, "Identity", [node.inputs[0]])


def _turned(bench: Bench, heads: ir.Value) -> ir.Value:
    return bench.narrowed(bench.add("RotaryEmbedding", bench.widened(heads), "cos", "sin", "position_ids"))


def rope_everywhere(bench: Bench) -> None:
    for layer in bench.config.layers_without_rope:
        for heads in ("transpose", "transpose_1"):
            plain = bench.value(f"model.layers.{layer}.self_attn.{heads}")
            bench.put(plain, _turned(bench, plain))


def rope_base_of_others(bench: Bench) -> None:
    for node in bench.nodes("RotaryEmbedding"):
        for index, name in ((1, "cos"), (2, "sin")):
            node.replace_input_with(index, bench.value(name))


def rope_backwards(bench: Bench) -> None:
    sine = bench.add("Neg", "sin")
    for node in bench.nodes("RotaryEmbedding"):
        node.replace_input_with(2, sine)


def rope_on_v(bench: Bench) -> None:
    for node in bench.named("self_attn.transpose_2"):
        bench.put(node.outputs[0], _turned(bench, node.outputs[0]))


def rotary_dims(count: int) -> Spoil:
    """RoPE on so many of a head's dimensions, by a table for them."""

    def spoil(bench: Bench) -> None:
        table(rotary_dim=count)(bench)
        attribute("RotaryEmbedding", "rotary_embedding_dim", count)(bench)

    return spoil


def _decode_positions(bench: Bench, by: int) -> ir.Value:
    """The positions, moved where a token comes alone."""
    length = bench.add("Shape", "position_ids", start=1, end=2)
    decoding = bench.add("Cast", bench.add("Equal", length, bench.constant([1])), to=int(ir.DataType.INT64))
    return bench.add("Add", "position_ids", bench.add("Mul", decoding, bench.constant([by])))


_LEARNED = "model.embed_positions.embedding"


def learned_on(by: int) -> Spoil:
    """Every token gets the vector of a later position."""

    def spoil(bench: Bench) -> None:
        bench.node(_LEARNED).replace_input_with(1, bench.add("Add", "position_ids", bench.constant([by])))

    return spoil


def learned_in_decode(by: int) -> Spoil:
    """Tokens that come alone get the vector of another position."""

    def spoil(bench: Bench) -> None:
        bench.node(_LEARNED).replace_input_with(1, _decode_positions(bench, by))

    return spoil


def learned_dropped(bench: Bench) -> None:
    added = bench.node("add")
    rows = next(value for value in added.inputs if value is not None and value.name != _LEARNED)
    bench.change(added, "Identity", [rows])


def decode_position(by: int) -> Spoil:
    def spoil(bench: Bench) -> None:
        shifted = _decode_positions(bench, by)
        for node in bench.nodes("RotaryEmbedding"):
            node.replace_input_with(3, shifted)

    return spoil


def remask(mask: Callable[[Bench], ir.Value | None], *, windowed: bool | None = None) -> Spoil:
    """Give the attention of some layers another mask: all, or only the windowed (or full) ones."""

    def spoil(bench: Bench) -> None:
        new = mask(bench)
        for layer in bench.layers:
            if windowed is None or windowed == (bench.config.window_of(layer) is not None):
                node = bench.node(f"model.layers.{layer}.self_attn.scaled_dot_product_attention")
                node.replace_input_with(3, new)

    return spoil


def windows_exchanged(bench: Bench) -> None:
    """Both masks change places."""
    whole, windowed = bench.value("le"), bench.value("__and__")
    remask(lambda bench: windowed, windowed=False)(bench)
    remask(lambda bench: whole, windowed=True)(bench)


def mask_sees_next(bench: Bench) -> None:
    """A second mask beside the sound one, for the layers to be spoilt."""
    seen = bench.add("LessOrEqual", "arange", bench.add("Add", "unsqueeze_1", bench.constant(1)))
    windowed = bench.add("And", seen, "gt") if bench.config.sliding_window is not None else None
    for layer in bench.layers:
        node = bench.node(f"model.layers.{layer}.self_attn.scaled_dot_product_attention")
        node.replace_input_with(3, seen if bench.config.window_of(layer) is None else windowed)


def mask_hides_self(bench: Bench) -> None:
    node = bench.node("le")
    bench.change(node, "Less", list(node.inputs))


def window(by: int) -> Spoil:
    def spoil(bench: Bench) -> None:
        assert bench.config.sliding_window is not None
        bench.node("sub").replace_input_with(1, bench.constant(bench.config.sliding_window + by))

    return spoil


def slots(by: int) -> Spoil:
    """Write one slot further (or earlier), as far as there are slots."""

    def spoil(bench: Bench) -> None:
        length = bench.add("Shape", "position_ids", start=1, end=2)
        last = bench.add("Sub", bench.add("Shape", "past_key_values.0.key", start=2, end=3), length)
        moved = bench.add("Add", "select", bench.constant([by]))
        start = bench.add("Max", bench.add("Min", moved, last), bench.constant([0]))
        for node in bench.nodes("TensorScatter"):
            node.replace_input_with(2, start)

    return spoil


def slot_zero(bench: Bench) -> None:
    """Scatter without write indices, which starts at 0."""
    for node in bench.nodes("TensorScatter"):
        node.resize_inputs(2)


def last_write_early(bench: Bench) -> None:
    """The last slot is never reached: a step into it writes to the one before."""
    length = bench.add("Shape", "position_ids", start=1, end=2)
    last = bench.add("Sub", bench.add("Shape", "past_key_values.0.key", start=2, end=3), length)
    start = bench.add("Min", "select", bench.add("Sub", last, bench.constant([1])))
    for node in bench.nodes("TensorScatter"):
        node.replace_input_with(2, start)


def cache_not_written(bench: Bench) -> None:
    for node in bench.nodes("TensorScatter"):
        bench.change(node, "Identity", [node.inputs[0]])


def stale_slot(position: int) -> Spoil:
    """The token at `position` leaves its slot as it was."""

    def spoil(bench: Bench) -> None:
        here = bench.add("Equal", "arange", bench.constant(position))
        column = bench.add("Reshape", here, bench.constant([-1, 1]))
        for node in bench.nodes("TensorScatter"):
            written = bench.add("TensorScatter", *node.inputs, axis=2, mode="linear")
            bench.change(node, "Where", [column, node.inputs[0], written])

    return spoil


def pasts_exchanged(*layers: int, kinds: tuple[str, ...] = ("key",)) -> Spoil:
    """Each of the layers takes the cache of the next one, and the last that of the first."""

    def spoil(bench: Bench) -> None:
        for kind in kinds:
            nodes = [bench.node(f"present.{layer}.{kind}") for layer in layers]
            pasts = [node.inputs[0] for node in nodes]
            for node, past in zip(nodes, pasts[1:] + pasts[:1], strict=True):
                node.replace_input_with(0, past)

    return spoil


def cache_lost(bench: Bench) -> None:
    """Keys are written into an empty cache in every call."""
    for node in bench.nodes("TensorScatter"):
        if str(node.outputs[0].name).endswith("key"):
            node.replace_input_with(0, bench.add("Sub", node.inputs[0], node.inputs[0]))


def presents_exchanged(one: str, other: str) -> Spoil:
    """Two of the caches are given under each other's name (`0.key`)."""

    def spoil(bench: Bench) -> None:
        first, second = (bench.value(f"present.{name}") for name in (one, other))
        outputs = bench.graph.outputs
        at, then = outputs.index(first), outputs.index(second)
        first.name = "exchanged"
        first.name, second.name = second.name, f"present.{one}"
        outputs[at], outputs[then] = second, first

    return spoil
