"""Gemma 3, the text model: Gemma 2's norms, QK-norm for its caps, and two bases of RoPE, by the type of a layer."""

from __future__ import annotations

from typing import Any

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import LAYER_TYPES, LayerType, ModelConfig
from blockexport.models.families.activations import stated_act
from blockexport.models.families.family import Family, GgufForm, LayerOptions, Options, Preset
from blockexport.models.families.gemma import causal_only
from blockexport.models.families.gemma2 import completed_around, large_model_scale, stated_cap, whole_scalar
from blockexport.models.families.windows import windows_or, write_windows

_WINDOW, _PATTERN, _LOCAL_BASE = 4096, 6, 10_000.0


def _types(layers: int, pattern: int = _PATTERN) -> tuple[LayerType, ...]:
    """Full attention in every sixth layer, windows in the others."""
    return tuple(LAYER_TYPES[(layer + 1) % pattern != 0] for layer in range(layers))


def _read_layers(fields: RawFields, layers: int) -> LayerOptions:
    return windows_or(fields, layers, _types(layers, fields.integer("sliding_window_pattern", _PATTERN)), _WINDOW)


def _read_options(fields: RawFields) -> Options:
    fields.only("attn_logit_softcapping", (None,), "transformers has the key and caps no score in this family")
    return {
        **causal_only(fields),
        "query_scale": fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        "final_logit_softcapping": stated_cap(fields, "final_logit_softcapping", None),
    }


def _write_options(config: ModelConfig) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": whole_scalar(config),
        "final_logit_softcapping": config.final_logit_softcapping,
        "rope_local_base_freq": config.sliding_rope_theta,
    }


def _gguf_options(fields: RawFields, layers: int) -> Options:
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": fields.integer("gemma3.attention.sliding_window"),
        "layer_types": _types(layers),
        "sliding_rope_theta": _LOCAL_BASE,
        "query_scale": large_model_scale(fields, "gemma3", layers == 62),
        "final_logit_softcapping": fields.decimal("gemma3.final_logit_softcapping", 0.0) or None,
    }


_GEMMA_3_1B = completed_around(
    ModelConfig(
        model_type="gemma3_text",
        vocab_size=262_144,
        hidden_size=1152,
        intermediate_size=6912,
        num_hidden_layers=26,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-6,
        rope_theta=1_000_000.0,
        hidden_act="gelu_pytorch_tanh",
        qk_norm=True,
        sliding_window=512,
        layer_types=_types(26),
        sliding_rope_theta=_LOCAL_BASE,
        tie_word_embeddings=True,
        dtype="bfloat16",
        bos_token_id=2,
        eos_token_ids=(1, 106),
    )
)

GEMMA3 = Family(
    model_type="gemma3_text",
    class_name="Gemma3ForCausalLM",
    max_position_embeddings=131_072,
    vocab_size=262_208,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=256,
    rope_theta=1_000_000.0,
    sliding_rope_theta=_LOCAL_BASE,
    sliding_rope_key="rope_local_base_freq",
    tie_word_embeddings=True,
    bos_token_id=2,
    eos_token_ids=(1,),
    bias_keys=("attention_bias",),
    qk_norm=True,
    read_layers=_read_layers,
    write_layers=write_windows,
    read_act=lambda fields: stated_act(fields, "hidden_activation", "gelu_pytorch_tanh"),
    act_key="hidden_activation",
    read_options=_read_options,
    write_options=_write_options,
    completed=completed_around,
    ignored={
        "hidden_act": "transformers reads hidden_activation; some published files have both",
        "_sliding_window_pattern": "what transformers made layer_types of; it does not read it back",
    },
    gguf=GgufForm("gemma3", gain_offset_added=True, options=_gguf_options),
    presets={"gemma-3-1b": Preset(_GEMMA_3_1B, "https://huggingface.co/google/gemma-3-1b-it")},
)
