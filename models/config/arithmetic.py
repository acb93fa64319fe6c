"""What a decoder costs, by counting: parameters, floating-point operations, and bytes of cache. No torch, no weights.

Every weight takes part in one multiplication and one addition per token, so a matrix costs two operations per
parameter; biases and gains are counted by the same rule. The embedding is looked up, not multiplied: it counts as
parameters and costs nothing, unless it is tied and multiplied once more as the output head. A query that sees T slots
costs 2 * T * N * H for its scores and as much for mixing the values. Softmax, RoPE, the activation and the two residual
additions have no matrix and are left out, as is customary.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockexport.models.config.model_config import HiddenAct, ModelConfig, NormPlace


@dataclass(frozen=True)
class Operation:
    """One step of a block: its Hugging Face name (or what it does), the shape it gives, and its cost.

    The shape has the letters B and S where the number depends on the call.
    """

    part: str  # "attention" or "mlp", the sublayer it belongs to
    name: str
    shape: tuple[str | int, ...]
    parameters: int = 0
    flops: int = 0  # per token


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters. `head` is that of its bias when the output projection is tied to the embedding."""

    attention: int  # of one block: projections and QK-norm
    mlp: int  # of one block
    norms: int  # of one block: those before and after the sublayers
    layers: int
    embedding: int  # with that of the positions, where they are learned
    final_norm: int
    head: int

    @property
    def block(self) -> int:
        """One block."""
        return self.attention + self.mlp + self.norms

    @property
    def mlp_share(self) -> float:
        """The MLP's part of a block, 0 to 1."""
        return self.mlp / self.block

    @property
    def blocks(self) -> int:
        """All blocks."""
        return self.layers * self.block

    @property
    def total(self) -> int:
        """The whole model, a tied matrix counted once."""
        return self.blocks + self.embedding + self.final_norm + self.head


def _linear(rows: int, columns: int, bias: bool) -> int:
    return rows * columns + (rows if bias else 0)


def visible_tokens(config: ModelConfig, layer: int, tokens: int) -> int:
    """How many of `tokens` slots a query in the layer sees: all, or at most its window."""
    window = config.window_of(layer)
    return tokens if window is None else min(tokens, window)


def _gains(config: ModelConfig, size: int) -> int:
    """Parameters of a norm over so many values."""
    return size * (config.norm_weight + config.norm_bias)


def _norm(config: ModelConfig, place: NormPlace) -> list[Operation]:
    """The norm at a place of a block, if one stands there."""
    if place not in config.layer_norms:
        return []
    part, hidden = place.partition("_")[0], config.hidden_size
    return [
        Operation(
            part, config.layer_norms[place], ("B", "S", hidden), _gains(config, hidden), 2 * _gains(config, hidden)
        )
    ]


def _attention_operations(config: ModelConfig, visible: int, has_rope: bool) -> list[Operation]:
    hidden, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    head_dim, bias = config.head_dim, config.qkv_bias
    query = _linear(heads * head_dim, hidden, bias)
    key = _linear(kv_heads * head_dim, hidden, bias)
    output = _linear(hidden, heads * head_dim, config.o_bias)
    query_shape, key_shape = ("B", "S", heads, head_dim), ("B", "S", kv_heads, head_dim)
    mixing = 2 * visible * heads * head_dim
    queries, keys = (_gains(config, size) for size in config.qk_norm_sizes)
    norms = [
        Operation("attention", "q_norm", query_shape, queries, 2 * queries),
        Operation("attention", "k_norm", key_shape, keys, 2 * keys),
    ]
    turns = [
        Operation("attention", "RoPE on q", ("B", heads, "S", head_dim)),
        Operation("attention", "RoPE on k", ("B", kv_heads, "S", head_dim)),
    ]
    return [
        *_norm(config, "attention_in"),
        Operation("attention", "q_proj", query_shape, query, 2 * query),
        Operation("attention", "k_proj", key_shape, key, 2 * key),
        Operation("attention", "v_proj", key_shape, key, 2 * key),
        *(norms if config.qk_norm and not config.qk_norm_after_rope else []),
        *(turns if has_rope else []),
        *(norms if config.qk_norm and config.qk_norm_after_rope else []),
        Operation("attention", "scores q·k", ("B", heads, "S", visible), flops=mixing),
        Operation("attention", "softmax", ("B", heads, "S", visible)),
        Operation("attention", "mix of v", ("B", heads, "S", head_dim), flops=mixing),
        Operation("attention", "o_proj", ("B", "S", hidden), output, 2 * output),
        *_norm(config, "attention_out"),
        # Side by side with the MLP it is added when that is.
        *([Operation("attention", "+ residual", ("B", "S", hidden))] if config.residual == "serial" else []),
    ]


ACT_WORDS: dict[HiddenAct, str] = {"silu": "SiLU", "gelu": "GELU", "gelu_pytorch_tanh": "GELU", "relu2": "ReLU²"}


def _mlp_operations(config: ModelConfig) -> list[Operation]:
    hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
    widen, narrow = _linear(inner, hidden, bias), _linear(hidden, inner, bias)
    gates = [Operation("mlp", "gate_proj", ("B", "S", inner), widen, 2 * widen)] if config.gated_mlp else []
    return [
        *_norm(config, "mlp_in"),
        *gates,
        Operation("mlp", "up_proj", ("B", "S", inner), widen, 2 * widen),
        Operation("mlp", f"{ACT_WORDS[config.hidden_act]}({'gate) × up' if gates else 'up)'}", ("B", "S", inner)),
        Operation("mlp", "down_proj", ("B", "S", hidden), narrow, 2 * narrow),
        *_norm(config, "mlp_out"),
        Operation("mlp", "+ residual", ("B", "S", hidden)),
    ]


def block_operations(config: ModelConfig, tokens: int, layer: int = 0) -> list[Operation]:
    """The steps of one block in order, for a query that `tokens` slots could be visible to, itself included."""
    attention = _attention_operations(config, visible_tokens(config, layer, tokens), config.has_rope(layer))
    return attention + _mlp_operations(config)


def count_parameters(config: ModelConfig) -> Parameters:
    """The parameters by part; all blocks of these families have the same number."""
    operations = block_operations(config, tokens=1)
    norms = config.layer_norms.values()
    embedding = config.vocab_size * config.hidden_size
    return Parameters(
        attention=sum(o.parameters for o in operations if o.part == "attention" and o.name not in norms),
        mlp=sum(o.parameters for o in operations if o.part == "mlp" and o.name not in norms),
        norms=sum(o.parameters for o in operations if o.name in norms),
        layers=config.num_hidden_layers,
        embedding=embedding + config.learned_positions * config.max_position_embeddings * config.hidden_size,
        final_norm=_gains(config, config.hidden_size),
        head=config.vocab_size * config.head_bias + (0 if config.tie_word_embeddings else embedding),
    )


def weight_flops(config: ModelConfig) -> int:
    """Operations per generated token that do not depend on the context: two per parameter, the lookup left out."""
    counted = count_parameters(config)
    return 2 * (counted.blocks + counted.final_norm + config.vocab_size * (config.hidden_size + config.head_bias))


def attention_flops(config: ModelConfig, tokens: int, layer: int = 0) -> int:
    """Operations of scores and mixing in one layer for one token that sees `tokens` slots: 4 * T * N * H."""
    return 4 * visible_tokens(config, layer, tokens) * config.num_attention_heads * config.head_dim


def all_attention_flops(config: ModelConfig, tokens: int) -> int:
    """`attention_flops` of all layers."""
    return sum(attention_flops(config, tokens, layer) for layer in range(config.num_hidden_layers))


def cache_bytes(config: ModelConfig, itemsize: int, tokens: int = 1, batch_size: int = 1) -> int:
    """Bytes of keys and values: 2 * L * K * H * itemsize per token. Windowed layers keep every slot too."""
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * itemsize
    return per_token * tokens * batch_size


def gqa_saving(config: ModelConfig) -> int:
    """How many times larger the cache would be with a key/value head for every query head: N / K."""
    return config.num_attention_heads // config.num_key_value_heads
