"""The bug zoo: every defect of the catalogue, to be built into an exported ONNX graph, and where it should be found."""

from __future__ import annotations

from dataclasses import dataclass, replace

from blockexport.models.config.model_config import ModelConfig, RopeScaling
from tests.exported import PARALLEL
from tests.zoo_bench import Spoil, attribute
from tests.zoo_edits_attention import (
    heads_tiled,
    heads_viewed,
    merge_viewed,
    qk_norm_after_rope,
    qk_norm_before_rope,
    qk_norm_by_head,
    qk_norm_dropped,
    query_growth_dropped,
    scale_missing,
    scale_twice,
    scale_usual,
    softmax_half,
)
from tests.zoo_edits_block import (
    act_missing,
    bias_dropped,
    dropout,
    final_norm_dropped,
    gain_offset_dropped,
    gain_plus_one,
    gelu,
    head_bias_dropped,
    head_tied,
    norm_bias_dropped,
    norm_dropped,
    norm_half,
    norm_mean_kept,
    norm_shared,
    norms_before,
    passed_over,
    relayer,
    residual_dropped,
    residual_multiplier_dropped,
    residual_serial,
    silu,
    squared_relu,
    swap_projections,
)
from tests.zoo_edits_position import (
    cache_lost,
    cache_not_written,
    decode_position,
    learned_dropped,
    learned_in_decode,
    learned_on,
    mask_hides_self,
    mask_sees_next,
    pasts_exchanged,
    remask,
    rope_backwards,
    rope_base_of_others,
    rope_everywhere,
    rope_missing,
    rope_on_v,
    rotary_dims,
    slot_zero,
    slots,
    stale_slot,
    table,
    window,
    windows_exchanged,
)


@dataclass(frozen=True)
class Exhibit:
    """A defect to build.

    Attributes:
        defect: its name in the catalogue.
        spoil: the edit.
        sites: where Locate may find it first.
        layer: the first layer it shows in; None outside the layers.
        decode: True when the prefill stays right.
        model: which of the zoo's models it needs.
        layers: those that are spoilt; None is all.
        backend: `replay` for what ONNX Runtime does not do on a CPU: it takes half precision for float32 there, so that
            the very same file passes.
    """

    defect: str
    spoil: Spoil
    sites: tuple[str, ...]
    layer: int | None = 0
    decode: bool = False
    model: str = "everything"
    layers: tuple[int, ...] | None = None
    backend: str = "onnxruntime"


STALE = 14
PLAIN_YARN = RopeScaling("yarn", factor=8.0, original_max_position_embeddings=16)
LEARNED, LATE = "learned positions", "norms after RoPE"
OUT_NORM, MLP_NORM = ("attention_out_norm",), ("mlp_out_norm",)

EXHIBITS: list[Exhibit] = [
    Exhibit("rope_interleaved", attribute("RotaryEmbedding", "interleaved", 1), ("q_rope",)),
    Exhibit("rope_missing", rope_missing, ("q_rope",)),
    Exhibit("rope_backwards", rope_backwards, ("q_rope",)),
    Exhibit("rope_on_v", rope_on_v, ("v_heads",)),
    Exhibit("rope_theta_500000", table(rope_theta=5e5), ("q_rope",)),
    Exhibit("rope_everywhere", rope_everywhere, ("k_rope",), layer=1, model="layer 1 without RoPE"),
    Exhibit("rope_base_of_others", rope_base_of_others, ("q_rope",), layer=1, model="two bases"),
    Exhibit("rope_scaling_dropped", table(rope_scaling=None), ("q_rope",), model="linear"),
    Exhibit("rope_scaling_dropped", table(rope_scaling=None), ("q_rope",), model="yarn"),
    Exhibit("attention_factor_dropped", table(rope_scaling=PLAIN_YARN), ("q_rope",), model="yarn"),
    Exhibit("rope_scaling_dropped", table(rope_scaling=None), ("q_rope",), model="llama3"),
    Exhibit("rope_scaling_dropped", table(rope_scaling=None), ("q_rope",), model="freq_factors"),
    Exhibit("position_ahead", decode_position(1), ("q_rope",), decode=True),
    Exhibit("position_behind", decode_position(-1), ("q_rope",), decode=True),
    Exhibit("position_ahead", learned_in_decode(1), ("embedding",), layer=None, decode=True, model=LEARNED),
    Exhibit("position_behind", learned_in_decode(-1), ("embedding",), layer=None, decode=True, model=LEARNED),
    Exhibit("positions_1_on", learned_on(1), ("embedding",), layer=None, model=LEARNED),
    Exhibit("positions_2_on", learned_on(2), ("embedding",), layer=None, model=LEARNED),
    Exhibit("learned_positions_dropped", learned_dropped, ("embedding",), layer=None, model=LEARNED),
    Exhibit("mask_sees_next", mask_sees_next, ("mask",)),
    Exhibit("mask_hides_self", mask_hides_self, ("mask",)),
    Exhibit("mask_missing", remask(lambda bench: None), ("mask",)),
    Exhibit("window_one_more", window(1), ("mask",), layer=1),
    Exhibit("window_one_less", window(-1), ("mask",), layer=1),
    Exhibit("window_dropped", remask(lambda bench: bench.value("le"), windowed=True), ("mask",), layer=1),
    Exhibit("window_everywhere", remask(lambda bench: bench.value("__and__"), windowed=False), ("mask",)),
    Exhibit("windows_exchanged", windows_exchanged, ("mask",)),
    Exhibit("slot_late", slots(1), ("cache_key",)),
    Exhibit("slot_early", slots(-1), ("cache_key",), decode=True),
    Exhibit("slot_zero", slot_zero, ("cache_key",), decode=True),
    Exhibit("cache_not_written", cache_not_written, ("cache_key",)),
    Exhibit("stale_slot", stale_slot(STALE), ("cache_key",), decode=True),
    Exhibit("caches_exchanged", pasts_exchanged(0, 2), ("cache_key",), decode=True),
    Exhibit("caches_lost", cache_lost, ("cache_key",), decode=True),
    Exhibit("heads_viewed", heads_viewed, ("q_heads",)),
    Exhibit("merge_viewed", merge_viewed, ("merged",)),
    Exhibit("scale_missing", scale_missing, ("query",)),
    Exhibit("scale_twice", scale_twice, ("attention",)),
    Exhibit("softmax_half", softmax_half, ("attention",), backend="replay"),
    Exhibit("k_v_swapped", swap_projections("self_attn.k_proj", "self_attn.v_proj"), ("k_proj",)),
    Exhibit("heads_tiled", heads_tiled, ("attention",)),
    Exhibit("qk_norm_dropped", qk_norm_dropped, ("q_heads",)),
    Exhibit("qk_norm_after_rope", qk_norm_after_rope, ("q_heads",)),
    Exhibit("query_growth_dropped", query_growth_dropped, ("query",), model=LATE),
    Exhibit("qk_norm_dropped", qk_norm_dropped, ("q_norm",), model=LATE),
    Exhibit("qk_norm_before_rope", qk_norm_before_rope, ("q_rope",), model=LATE),
    Exhibit("qk_norm_by_head", qk_norm_by_head, ("q_heads",), model="norms after"),
    Exhibit("q_proj_bias_dropped", bias_dropped("self_attn.q_proj"), ("q_proj",)),
    Exhibit("k_proj_bias_dropped", bias_dropped("self_attn.k_proj"), ("k_proj",)),
    Exhibit("v_proj_bias_dropped", bias_dropped("self_attn.v_proj"), ("v_proj",)),
    Exhibit("o_proj_bias_dropped", bias_dropped("self_attn.o_proj"), ("o_proj",)),
    Exhibit("gate_proj_bias_dropped", bias_dropped("mlp.gate_proj"), ("gate_proj",)),
    Exhibit("up_proj_bias_dropped", bias_dropped("mlp.up_proj"), ("up_proj",)),
    Exhibit("down_proj_bias_dropped", bias_dropped("mlp.down_proj"), ("down_proj",)),
    Exhibit("qkv_bias_dropped", bias_dropped(*(f"self_attn.{x}_proj" for x in "qkv")), ("q_proj",)),
    Exhibit("norm_half", norm_half, ("input_layernorm",), backend="replay"),
    Exhibit("gain_plus_one", gain_plus_one, ("input_layernorm",)),
    Exhibit("final_norm_dropped", final_norm_dropped, ("final_norm",), layer=None),
    Exhibit("attention_out_norm_dropped", norm_dropped("post_attention_layernorm"), OUT_NORM, model="norms after"),
    Exhibit("mlp_out_norm_dropped", norm_dropped("post_feedforward_layernorm"), MLP_NORM, model="norms after"),
    Exhibit("attention_out_norm_dropped", norm_dropped("post_attention_layernorm"), OUT_NORM, model="scaled"),
    Exhibit("mlp_out_norm_dropped", norm_dropped("post_feedforward_layernorm"), MLP_NORM, model="scaled"),
    Exhibit("gain_offset_dropped", gain_offset_dropped, ("input_layernorm",), model="scaled"),
    Exhibit("embedding_multiplier_dropped", passed_over("mul"), ("embedding",), layer=None, model="scaled"),
    Exhibit("residual_multiplier_dropped", residual_multiplier_dropped, ("attention_residual",), model="scaled"),
    Exhibit("logits_multiplier_dropped", passed_over("mul_1"), ("head",), layer=None, model="scaled"),
    Exhibit("final_logit_softcapping_dropped", passed_over("mul_2", "tanh", "div"), ("head",), None, model="scaled"),
    Exhibit("attention_softcap_dropped", attribute("Attention", "softcap", 0.0), ("attention",), model="scaled"),
    Exhibit("scale_usual", scale_usual, ("query",), model="scaled"),
    Exhibit("silu", silu, ("activation",), model="scaled"),
    Exhibit("gelu", gelu("none"), ("activation",), model="scaled"),
    Exhibit("gelu_missing", act_missing, ("activation",), model="scaled"),
    Exhibit("norms_before", norms_before, ("q_proj",), model="norms after"),
    Exhibit("norm_mean_kept", norm_mean_kept, ("input_layernorm",), model="parallel"),
    Exhibit("norm_bias_dropped", norm_bias_dropped, ("input_layernorm",), model="parallel"),
    Exhibit("relu2_missing", squared_relu("all"), ("activation",), model="parallel"),
    Exhibit("square_missing", squared_relu("square"), ("activation",), model="parallel"),
    Exhibit("residual_serial", residual_serial, ("post_attention_layernorm",), model="parallel"),
    Exhibit("norm_shared", norm_shared, ("post_attention_layernorm",), model="parallel"),
    Exhibit("head_bias_dropped", head_bias_dropped, ("head",), layer=None, model="parallel"),
    Exhibit("rope_halves", attribute("RotaryEmbedding", "interleaved", 0), ("q_rope",), model="parallel"),
    Exhibit("rope_partial_dropped", rotary_dims(10), ("q_rope",), model="parallel"),
    Exhibit("rope_dims_8", rotary_dims(8), ("q_rope",), model="parallel"),
    Exhibit("eps_1e-06", attribute("RMSNormalization", "epsilon", 1e-6, everywhere=True), ("input_layernorm",)),
    Exhibit("gelu", gelu("none"), ("activation",)),
    Exhibit("gelu_tanh", gelu("tanh"), ("activation",)),
    Exhibit("silu_missing", act_missing, ("activation",)),
    Exhibit("gate_up_swapped", swap_projections("mlp.gate_proj", "mlp.up_proj"), ("gate_proj",)),
    Exhibit("attention_residual_dropped", residual_dropped("add", "self_attn.o_proj.linear"), ("attention_residual",)),
    Exhibit("mlp_residual_dropped", residual_dropped("add_1", "mlp.down_proj.linear"), ("mlp_residual",)),
    Exhibit("head_tied", head_tied, ("head",), layer=None),
    Exhibit("layers_permuted", relayer(0, 2, 1, 3, 4), ("input_layernorm",), layer=1),
    Exhibit("layer_duplicated", relayer(0, 1, 1, 3, 4), ("input_layernorm",), layer=2),
    Exhibit("dropout", dropout, ("activation",)),
]


def models(config: ModelConfig) -> dict[str, ModelConfig]:
    """The zoo's models: one with everything, one with a layer that lacks RoPE, one with two bases of RoPE, one with
    norms after the sublayers, one with all multipliers and caps (and norms before and after), one whose sublayers read
    the same stream, with LayerNorm, one with learned positions, and one for each kind of RoPE's scaling."""
    factors = tuple(1.0 + 0.7 * i for i in range(config.head_dim // 2))
    scalings = {
        "linear": RopeScaling("linear", factor=4.0),
        "llama3": RopeScaling(
            "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
        ),
        "yarn": replace(PLAIN_YARN, attention_factor=1.3),
        "freq_factors": RopeScaling("freq_factors", freq_factors=factors),
    }
    unturned = replace(config, layers_without_rope=(1,))
    return {
        "everything": config,
        "layer 1 without RoPE": unturned,
        "two bases": replace(config, sliding_rope_theta=300.0, rope_scaling=scalings["linear"]),
        "norms after": replace(config, norm_placement="post", qk_norm_over="projection"),
        "scaled": replace(
            config,
            norm_placement="both",
            norm_gain_offset=True,
            hidden_act="gelu_pytorch_tanh",
            query_scale=0.5,
            attn_logit_softcapping=2.0,
            embedding_multiplier=3.0,
            residual_multiplier=0.6,
            logits_multiplier=1.5,
            final_logit_softcapping=4.0,
        ),
        "parallel": replace(config, **PARALLEL),
        LEARNED: replace(config, learned_positions=True),
        LATE: replace(
            config,
            qk_norm_after_rope=True,
            rope_scaling=RopeScaling("ntk_alpha", factor=30.0),
            query_growth=0.3,
            query_growth_length=5,
        ),
        **{name: replace(config, rope_scaling=s) for name, s in scalings.items()},
    }
