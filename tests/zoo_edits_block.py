"""Edits that build the bug zoo's defects into an exported graph: norms, MLP, residual stream, whose weights.

Nothing here uses `compare/explain/defects_block.py`: the two are written independently, so that each proves the
other.
"""

from __future__ import annotations

from tests.zoo_bench import HALF, Bench, Spoil


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
        stream, read = bench.value(f"model.layers.{layer}.add"), norm.inputs[0]
        entering = None if read is None else read.producer()
        if entering is not None and entering.op_type == "Cast":  # half precision is widened before it is normed
            stream = bench.add("Cast", stream, to=entering.attributes["to"].value)
        norm.replace_input_with(0, stream)


def norm_shared(bench: Bench) -> None:
    """The MLP's norm with the gain and bias of attention's."""
    for layer in bench.layers:
        own, other = (
            bench.node(f"model.layers.{layer}.{name}.layer_norm")
            for name in ("post_attention_layernorm", "input_layernorm")
        )
        for index in (1, 2):
            own.replace_input_with(index, other.inputs[index])


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


def residual_dropped(suffix: str, branch: str) -> Spoil:
    def spoil(bench: Bench) -> None:
        for layer in bench.layers:
            node = bench.node(f"model.layers.{layer}.{suffix}")
            bench.put(node.outputs[0], bench.value(f"model.layers.{layer}.{branch}"))
            bench.graph.remove(node, safe=True)

    return spoil


def head_bias_dropped(bench: Bench) -> None:
    bench.node("linear").resize_inputs(2)


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
