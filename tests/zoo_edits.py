"""The edits that build the bug zoo's defects into an exported graph.

Nothing here uses the eager defects of `compare/`: the two are written independently, so that each proves the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from blockexport.models.block.rope import rope_table
from tests.zoo_bench import Bench

Spoil = Callable[[Bench], None]
HALF = int(ir.DataType.FLOAT16)


def attribute(op_type: str, name: str, value: int | float, *, everywhere: bool = False) -> Spoil:
    """Set an attribute of all nodes of a type."""

    def spoil(bench: Bench) -> None:
        for node in bench.nodes(op_type, everywhere=everywhere):
            node.attributes[name] = ir.AttrInt64(name, value) if isinstance(value, int) else ir.AttrFloat32(name, value)

    return spoil


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


def decode_position(by: int) -> Spoil:
    def spoil(bench: Bench) -> None:
        length = bench.add("Shape", "position_ids", start=1, end=2)
        decoding = bench.add("Cast", bench.add("Equal", length, bench.constant([1])), to=int(ir.DataType.INT64))
        shifted = bench.add("Add", "position_ids", bench.add("Mul", decoding, bench.constant([by])))
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


def heads_viewed(bench: Bench) -> None:
    batch, length = (bench.add("Shape", "position_ids", start=i, end=i + 1) for i in (0, 1))
    for layer in bench.layers:
        for suffix in ("transpose", "transpose_1", "transpose_2"):
            node = bench.node(f"model.layers.{layer}.self_attn.{suffix}")
            heads = bench.config.num_attention_heads if suffix == "transpose" else bench.config.num_key_value_heads
            sizes = [batch, bench.constant([heads]), length, bench.constant([bench.config.head_dim])]
            bench.change(node, "Reshape", [node.inputs[0], bench.add("Concat", *sizes, axis=0)])


def merge_viewed(bench: Bench) -> None:
    for node in bench.named("self_attn.transpose_3"):
        bench.change(node, "Identity", [node.inputs[0]])


def scale_missing(bench: Bench) -> None:
    for node in bench.named("self_attn.mul"):
        bench.change(node, "Identity", [node.inputs[0]])


def scale_twice(bench: Bench) -> None:
    attribute("Attention", "scale", bench.config.head_dim**-0.5)(bench)


def heads_tiled(bench: Bench) -> None:
    repeats = bench.constant([1, bench.config.num_attention_heads // bench.config.num_key_value_heads, 1, 1])
    for node in bench.nodes("Attention"):
        for index in (1, 2):
            node.replace_input_with(index, bench.add("Tile", node.inputs[index], repeats))


def softmax_half(bench: Bench) -> None:
    heads, groups = bench.config.num_attention_heads, bench.config.num_key_value_heads
    repeats = bench.constant([1, 1, heads // groups, 1, 1])
    shape = bench.constant([0, heads, -1, bench.config.head_dim])
    hidden = bench.constant(float("-inf"), "float16")
    for node in bench.nodes("Attention"):
        query, keys, values, mask = node.inputs
        keys, values = (
            bench.add("Reshape", bench.add("Tile", bench.add("Unsqueeze", x, bench.constant([2])), repeats), shape)
            for x in (keys, values)
        )
        scores = bench.add("MatMul", query, bench.add("Transpose", keys, perm=[0, 1, 3, 2]))
        masked = bench.add("Where", mask, bench.add("Cast", scores, to=HALF), hidden)
        weights = bench.widened(bench.add("Softmax", masked, axis=-1))
        bench.change(node, "MatMul", [bench.narrowed(weights), values])


def swap_projections(first: str, second: str) -> Spoil:
    def spoil(bench: Bench) -> None:
        for layer in bench.layers:
            left, right = (f"model.layers.{layer}.{name}" for name in (first, second))
            parts = [part for part in ("view", "heads") if bench.has(f"{left}.{part}")]
            if parts:  # of one product, of which each is taken for the other
                bench.swap_uses(f"{left}.{parts[0]}", f"{right}.{parts[0]}")
            else:
                bench.swap_inputs(bench.node(f"{left}.linear"), bench.node(f"{right}.linear"))

    return spoil


def qk_norm_dropped(bench: Bench) -> None:
    for suffix in ("q_norm", "k_norm"):
        for node in bench.named(f"self_attn.{suffix}.rms_norm"):
            bench.change(node, "Identity", [node.inputs[0]])


def qk_norm_by_head(bench: Bench) -> None:
    for suffix in ("q_norm", "k_norm"):
        for node in bench.named(f"self_attn.{suffix}.rms_norm"):
            x, gain = node.inputs
            ones = bench.narrowed(bench.constant([1.0] * bench.config.head_dim, "float32"))
            heads = bench.add("Reshape", x, bench.constant([0, -1, bench.config.head_dim]))
            epsilon = node.attributes["epsilon"].as_float()
            normed = bench.add("RMSNormalization", heads, ones, axis=-1, epsilon=epsilon, stash_type=1)
            bench.change(node, "Mul", [bench.add("Reshape", normed, bench.constant([0, -1])), gain])


def norm_mean_kept(bench: Bench) -> None:
    for node in list(bench.nodes("LayerNormalization", everywhere=True)):
        x, gain, bias = node.inputs
        epsilon = node.attributes["epsilon"].as_float()
        normed = bench.add("RMSNormalization", x, gain, axis=-1, epsilon=epsilon, stash_type=1)
        bench.change(node, "Add", [normed, bias])


def norm_bias_dropped(bench: Bench) -> None:
    for node in bench.nodes("LayerNormalization", everywhere=True):
        node.resize_inputs(2)


def residual_serial(bench: Bench) -> None:
    for layer in bench.layers:
        norm = bench.node(f"model.layers.{layer}.post_attention_layernorm.layer_norm")
        norm.replace_input_with(0, bench.value(f"model.layers.{layer}.add"))


def rotary_dims(count: int) -> Spoil:
    """RoPE on so many of a head's dimensions, by a table for them."""

    def spoil(bench: Bench) -> None:
        table(rotary_dim=count)(bench)
        attribute("RotaryEmbedding", "rotary_embedding_dim", count)(bench)

    return spoil


def norm_dropped(norm: str) -> Spoil:
    def spoil(bench: Bench) -> None:
        for node in bench.named(f"{norm}.rms_norm"):
            bench.change(node, "Identity", [node.inputs[0]])

    return spoil


def norms_before(bench: Bench) -> None:
    """The gains of the norms after the sublayers, in norms before them."""
    for norm, reads in (
        ("post_attention_layernorm", [f"self_attn.{x}_proj.linear" for x in "qkv"]),
        ("post_feedforward_layernorm", ["mlp.gate_proj.linear", "mlp.up_proj.linear"]),
    ):
        for layer in bench.layers:
            node = bench.node(f"model.layers.{layer}.{norm}.rms_norm")
            readers = [bench.node(f"model.layers.{layer}.{name}") for name in reads]
            attributes = {name: node.attributes[name].value for name in ("axis", "epsilon", "stash_type")}
            moved = bench.add("RMSNormalization", readers[0].inputs[0], node.inputs[1], **attributes)
            for reader in readers:
                reader.replace_input_with(0, moved)
            bench.change(node, "Identity", [node.inputs[0]])


def qk_norm_after_rope(bench: Bench) -> None:
    for suffix, turned in (("q_norm", "rotary_embedding"), ("k_norm", "rotary_embedding_1")):
        for norm in bench.named(f"self_attn.{suffix}.rms_norm"):
            layer = str(norm.outputs[0].name).split(".")[2]
            rotary = bench.node(f"model.layers.{layer}.self_attn.{turned}")
            bench.put(norm.outputs[0], bench.add("Identity", norm.inputs[0]))
            rotated = rotary.outputs[0]
            if bench.is_half:
                rotated = next(user.outputs[0] for user, _ in rotated.uses())
            users = list(rotated.uses())
            norm.replace_input_with(0, rotated)
            for user, index in users:
                user.replace_input_with(index, norm.outputs[0])


def bias_dropped(*projections: str) -> Spoil:
    def spoil(bench: Bench) -> None:
        for projection in projections:
            for node in bench.named(f"{projection}.linear"):
                node.resize_inputs(2)

    return spoil


def norm_half(bench: Bench) -> None:
    for node in [*bench.nodes("RMSNormalization"), bench.node("model.norm.rms_norm")]:
        x, gain = node.inputs
        half = bench.add("Cast", x, to=HALF)
        mean = bench.add("ReduceMean", bench.add("Mul", half, half), bench.constant([-1]), keepdims=1)
        epsilon = bench.constant(node.attributes["epsilon"].as_float(), "float32")
        root = bench.add("Sqrt", bench.add("Add", bench.widened(mean), epsilon))
        bench.change(node, "Mul", [bench.narrowed(bench.add("Div", bench.widened(x), root)), gain])


def gain_plus_one(bench: Bench) -> None:
    one = bench.narrowed(bench.constant(1.0, "float32"))
    for node in list(bench.nodes("RMSNormalization", everywhere=True)):
        node.replace_input_with(1, bench.add("Add", node.inputs[1], one))


def final_norm_dropped(bench: Bench) -> None:
    node = bench.node("model.norm.rms_norm")
    bench.put(node.outputs[0], node.inputs[0])  # type: ignore[arg-type]
    bench.graph.remove(node, safe=True)


def _activation(bench: Bench) -> str:
    return "mlp.silu" if bench.config.hidden_act == "silu" else "mlp.gelu"


def gelu(approximate: str) -> Spoil:
    def spoil(bench: Bench) -> None:
        for node in bench.named(_activation(bench)):
            bench.change(node, "Gelu", [node.inputs[0]], approximate=approximate)

    return spoil


def squared_relu(dropped: str) -> Spoil:
    """The square of ReLU dropped, or all of it."""

    def spoil(bench: Bench) -> None:
        for node in bench.named("mlp.mul"):
            relu = node.inputs[0]
            assert relu is not None
            producer = relu.producer()
            assert producer is not None
            bench.change(node, "Identity", [relu if dropped == "square" else producer.inputs[0]])

    return spoil


def silu(bench: Bench) -> None:
    for node in bench.named(_activation(bench)):
        bench.change(node, "Mul", [node.inputs[0], bench.add("Sigmoid", node.inputs[0])])


def act_missing(bench: Bench) -> None:
    for node in bench.named(_activation(bench)):
        bench.change(node, "Identity", [node.inputs[0]])


def gain_offset_dropped(bench: Bench) -> None:
    for node in list(bench.nodes("RMSNormalization", everywhere=True)):
        node.replace_input_with(1, node.inputs[1].producer().inputs[0])  # type: ignore[union-attr]


def passed_over(*names: str) -> Spoil:
    """Nodes of one input and constants, outside the layers, that are left out."""

    def spoil(bench: Bench) -> None:
        for name in names:
            node = bench.node(name)
            bench.change(node, "Identity", [node.inputs[0]])

    return spoil


def residual_multiplier_dropped(bench: Bench) -> None:
    for name in ("mul", "mul_1"):
        for node in bench.named(name):
            bench.change(node, "Identity", [node.inputs[0]])


def scale_usual(bench: Bench) -> None:
    for node in bench.named("self_attn.mul"):
        usual = bench.constant(bench.config.head_dim**-0.5, "float32")
        bench.change(node, "Mul", [node.inputs[0], bench.narrowed(usual)])


def residual_dropped(suffix: str, branch: str) -> Spoil:
    def spoil(bench: Bench) -> None:
        for layer in bench.layers:
            node = bench.node(f"model.layers.{layer}.{suffix}")
            bench.put(node.outputs[0], bench.value(f"model.layers.{layer}.{branch}"))
            bench.graph.remove(node, safe=True)

    return spoil


def head_tied(bench: Bench) -> None:
    bench.node("linear").replace_input_with(1, bench.value("model.embed_tokens.weight"))


def relayer(*mapping: int) -> Spoil:
    """Layer i computes with the weights of layer mapping[i]."""

    def spoil(bench: Bench) -> None:
        edits = []
        for node in bench.graph:
            for index, value in enumerate(node.inputs):
                if value is not None and value.is_initializer() and str(value.name).startswith("model.layers."):
                    _, _, layer, rest = str(value.name).split(".", 3)
                    other = mapping[int(layer)]
                    if other != int(layer):
                        edits.append((node, index, bench.value(f"model.layers.{other}.{rest}")))
        for node, index, value in edits:
            node.replace_input_with(index, value)

    return spoil


def dropout(bench: Bench) -> None:
    # A training flag that is computed: ONNX Runtime drops the node where the flag is an initializer, whatever it says.
    size = bench.add("Squeeze", bench.add("Shape", "position_ids", start=0, end=1))
    ratio, training = bench.constant(0.1, "float32"), bench.add("Greater", size, bench.constant(0))
    for node in bench.named("mlp.mul"):
        bench.become(node, bench.add("Dropout", node.outputs[0], ratio, training))
