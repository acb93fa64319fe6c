"""Edits that build the bug zoo's defects into an exported graph: heads, scale, softmax, QK-norm.

Nothing here uses `compare/explain/defects_attention.py`: the two are written independently, so that each proves the
other.
"""

from __future__ import annotations

from tests.zoo_bench import HALF, Bench, attribute


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


def scale_usual(bench: Bench) -> None:
    for node in bench.named("self_attn.mul"):
        usual = bench.constant(bench.config.head_dim**-0.5, "float32")
        bench.change(node, "Mul", [node.inputs[0], bench.narrowed(usual)])


def query_growth_dropped(bench: Bench) -> None:
    """The nearest product of two values before the queries."""
    for node in bench.nodes("Attention"):
        value = node.inputs[0]
        while value is not None and (maker := value.producer()) is not None:
            if maker.op_type == "Mul" and all(one is not None and one.const_value is None for one in maker.inputs):
                bench.change(maker, "Identity", [maker.inputs[0]])
                break
            value = maker.inputs[0]


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


def qk_norm_before_rope(bench: Bench) -> None:
    for suffix, turned in (("q_norm", "rotary_embedding"), ("k_norm", "rotary_embedding_1")):
        for norm in bench.named(f"self_attn.{suffix}.rms_norm"):
            layer = str(norm.outputs[0].name).split(".")[2]
            rotary = bench.node(f"model.layers.{layer}.self_attn.{turned}")
            heads = bench.node(f"model.layers.{layer}.self_attn.transpose{'_1' * (suffix == 'k_norm')}").outputs[0]
            epsilon = norm.attributes["epsilon"].as_float()
            normed = bench.add("RMSNormalization", heads, norm.inputs[1], axis=-1, epsilon=epsilon, stash_type=1)
            rotary.replace_input_with(0, bench.widened(normed) if bench.is_half else normed)
            bench.change(norm, "Identity", [norm.inputs[0]])


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
