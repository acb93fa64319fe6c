"""What a decoder is, in numbers: one frozen record that every layer of the project reads.

Field names are those of Hugging Face's `config.json`. Readers of config.json, of GGUF metadata and the presets all
produce this record; nothing else in the project looks at a raw config.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

LayerType = Literal["full_attention", "sliding_attention"]
LAYER_TYPES: tuple[LayerType, ...] = get_args(LayerType)
NormType = Literal["rms_norm", "layer_norm"]
RopeType = Literal["linear", "llama3", "yarn", "freq_factors", "longrope", "dynamic", "ntk_alpha"]
HiddenAct = Literal["silu", "gelu", "gelu_pytorch_tanh", "relu2"]
Residual = Literal["serial", "parallel", "parallel_one_norm"]
NormPlacement = Literal["pre", "post", "both"]
NormPlace = Literal["attention_in", "attention_out", "mlp_in", "mlp_out"]

LAYER_NORMS: dict[NormPlacement, dict[NormPlace, str]] = {
    "pre": {"attention_in": "input_layernorm", "mlp_in": "post_attention_layernorm"},
    "post": {"attention_out": "post_attention_layernorm", "mlp_out": "post_feedforward_layernorm"},
    "both": {
        "attention_in": "input_layernorm",
        "attention_out": "post_attention_layernorm",
        "mlp_in": "pre_feedforward_layernorm",
        "mlp_out": "post_feedforward_layernorm",
    },
}
"""The norms of a block beside QK-norm: where each stands, and Hugging Face's name of it there."""


@dataclass(frozen=True)
class RopeScaling:
    """How the rotation frequencies are stretched beyond the training context.

    `linear` divides every frequency by `factor`; `llama3` divides only the long wavelengths, with a smooth ramp;
    `yarn` divides those that turn slowly, with a ramp from `beta_fast` to `beta_slow` turns over the old context, and
    multiplies cosines and sines by `attention_factor`;
    `ntk_alpha` multiplies the base by `factor`^(R / (R - 2)), R being how many of a head's dimensions are turned;
    `freq_factors` divides frequency i by `freq_factors[i]` (a GGUF file's way to store llama3 scaling);
    `longrope` does so up to the old context, and multiplies as `yarn` does (Ding et al. 2024, LongRoPE,
    https://arxiv.org/abs/2402.13753); `dynamic` changes nothing up to the model's own range. What these two do
    beyond, to the whole text at once, cannot be: keys in the cache are turned already.
    """

    rope_type: RopeType
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # the ends of the ramp are whole pairs
    attention_factor: float = 1.0
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions and options of a decoder. Letters in brackets are the project's shape letters."""

    model_type: str
    vocab_size: int  # V
    hidden_size: int  # D
    intermediate_size: int  # F
    num_hidden_layers: int  # L
    num_attention_heads: int  # N
    num_key_value_heads: int  # K
    head_dim: int  # H
    max_position_embeddings: int
    rms_norm_eps: float  # of every norm, of whichever kind
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    rotary_dim: int | None = None  # how many of a head's first dimensions RoPE turns; None is all
    rope_interleaved: bool = False  # RoPE turns neighbours (2i, 2i + 1) and not halves (i, i + rotary_dim / 2)
    norm: NormType = "rms_norm"
    norm_weight: bool = True  # norms have gains
    norm_bias: bool = False  # norms have biases, which only a LayerNorm may
    norm_gain_offset: bool = False  # norms multiply by 1 + weight
    residual: Residual = "serial"  # whether the MLP reads what attention added: see `block/block.py`
    norm_placement: NormPlacement = "pre"  # before each sublayer, after it, or both: see `block/block.py`
    hidden_act: HiddenAct = "silu"
    gated_mlp: bool = True  # the activation of gate_proj multiplies up_proj; else it is that of up_proj
    qkv_bias: bool = False  # biases of q_proj, k_proj and v_proj
    o_bias: bool = False  # bias of o_proj
    mlp_bias: bool = False  # biases of gate_proj, up_proj and down_proj
    qk_norm: bool = False  # norm of queries and keys
    qk_norm_over: Literal["head", "projection"] = "head"  # what QK-norm takes its mean over: H, or N * H and K * H
    qk_norm_after_rope: bool = False  # QK-norm takes what RoPE has turned, and not what it is to turn
    query_scale: float | None = None  # what queries are multiplied by; None is 1 / sqrt(H)
    query_growth: float | None = None  # and by 1 + query_growth * ln(1 + floor(position / query_growth_length))
    query_growth_length: int | None = None
    attn_logit_softcapping: float | None = None  # the cap on attention's scores
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0  # of what a sublayer adds to the stream
    logits_multiplier: float = 1.0
    final_logit_softcapping: float | None = None  # the cap on the logits
    sliding_window: int | None = None  # a query at p sees p - window + 1 .. p in the sliding layers
    layer_types: tuple[LayerType, ...] = ()  # one per layer; empty means all full
    sliding_rope_theta: float | None = None  # RoPE's base in the sliding layers, without scaling; None: as in others
    layers_without_rope: tuple[int, ...] = ()
    learned_positions: bool = False  # a learned vector per position is added to the embedding, and no layer has RoPE
    tie_word_embeddings: bool = False
    head_bias: bool = False  # of the output head, tied or not
    dtype: str = "float32"  # of the checkpoint's weights
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = field(default=())

    def window_of(self, layer: int) -> int | None:
        """The sliding window of a layer, or None where it sees the whole prefix."""
        if not self.layer_types or self.layer_types[layer] == "full_attention":
            return None
        return self.sliding_window

    def rope_of(self, layer: int) -> ModelConfig:
        """The config whose `rope_theta` and `rope_scaling` are those of a layer."""
        if self.sliding_rope_theta is None or self.window_of(layer) is None:
            return replace(self, sliding_rope_theta=None)
        return replace(self, rope_theta=self.sliding_rope_theta, rope_scaling=None, sliding_rope_theta=None)

    @property
    def bound(self) -> tuple[int, str] | None:
        """The most positions that there can be, and what they are; None where a table can be made of any length."""
        scaling = self.rope_scaling
        if self.learned_positions:
            return self.max_position_embeddings, "positions that the model has learned"
        if scaling is not None and scaling.rope_type == "longrope":
            reach = scaling.original_max_position_embeddings
        elif scaling is not None and scaling.rope_type == "dynamic":
            reach = self.max_position_embeddings
        else:
            return None
        kind = {"longrope": "LongRoPE", "dynamic": "dynamic RoPE"}[scaling.rope_type]
        return reach, f"positions up to which {kind} has one table: a longer text has all its keys turned by another"

    @property
    def reach(self) -> int:
        """Positions of the model's own range that one table has."""
        return self.max_position_embeddings if self.bound is None else self.bound[0]

    def has_rope(self, layer: int) -> bool:
        """Whether a layer turns its queries and keys by their positions."""
        return not self.learned_positions and layer not in self.layers_without_rope

    @property
    def score_scale(self) -> float:
        """What queries are multiplied by: 1/sqrt(H), which keeps the variance of a score that of one entry, or another
        factor."""
        return float(self.head_dim**-0.5) if self.query_scale is None else self.query_scale

    @property
    def layer_norms(self) -> dict[NormPlace, str]:
        """The norms of a block beside QK-norm: where each stands, and its name."""
        norms = LAYER_NORMS[self.norm_placement]
        if self.residual == "parallel_one_norm":
            return {place: name for place, name in norms.items() if place != "mlp_in"}
        return norms

    @property
    def turned_dims(self) -> int:
        """How many of a head's dimensions RoPE turns."""
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def qk_norm_sizes(self) -> tuple[int, int]:
        """How many gains the norm of the queries and that of the keys have."""
        if self.qk_norm_over == "head":
            return self.head_dim, self.head_dim
        return self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim

    def to_json(self) -> dict[str, Any]:
        """The record as plain JSON values, for the manifest. `read_record` reads it back."""
        return asdict(self)
