"""Gemma 2: norms before and after each sublayer, a window in every other layer, caps on scores and logits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import LAYER_TYPES, LayerType, ModelConfig
from blockexport.models.families.activations import stated_act
from blockexport.models.families.family import Family, GgufForm, Options, Preset
from blockexport.models.families.gemma import causal_only, completed
from blockexport.models.families.windows import windows_or, write_windows

_WINDOW = 4096


def _types(layers: int) -> tuple[LayerType, ...]:
    """Windows in the first layer and every other one after it."""
    return tuple(LAYER_TYPES[layer % 2 == 0] for layer in range(layers))


def stated_cap(fields: RawFields, key: str, default: float | None) -> float | None:
    """The cap under a key; null means none."""
    if default is None and not fields.has(key):
        return None
    return None if fields.has(key) and fields.get(key) is None else fields.number(key, default)


def _read_options(fields: RawFields) -> Options:
    return {
        **causal_only(fields),
        "query_scale": fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        "attn_logit_softcapping": stated_cap(fields, "attn_logit_softcapping", 50.0),
        "final_logit_softcapping": stated_cap(fields, "final_logit_softcapping", 30.0),
    }


def _write_options(config: ModelConfig) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": whole_scalar(config),
        "attn_logit_softcapping": config.attn_logit_softcapping,
        "final_logit_softcapping": config.final_logit_softcapping,
    }


def whole_scalar(config: ModelConfig) -> float | int:
    """What the scale of attention is the root of: a whole number in every published file."""
    scalar = float(f"{config.score_scale**-2:.12g}")
    return int(scalar) if scalar.is_integer() else scalar


def large_model_scale(fields: RawFields, arch: Literal["gemma2", "gemma3"], large: bool) -> float | None:
    """llama.cpp knows the scale by the number of layers: 1/sqrt(D / N) in the largest model, 1/sqrt(H) in others."""
    if not large:
        return None
    width = fields.integer(f"{arch}.embedding_length") / fields.integer(f"{arch}.attention.head_count")
    return float(width**-0.5)


def _gguf_options(fields: RawFields, layers: int) -> Options:
    window = fields.integer("gemma2.attention.sliding_window", _WINDOW)
    caps = {key: fields.decimal(f"gemma2.{key}", 0.0) or None for key in _CAPS}
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": window,
        "layer_types": _types(layers),
        "query_scale": large_model_scale(fields, "gemma2", layers == 46),
        **caps,
    }


_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")


def completed_around(config: ModelConfig) -> ModelConfig:
    """What all Gemmas from the second on have: norms before and after each sublayer, and a scale only where it is not
    the usual one."""
    usual = config.query_scale is not None and math.isclose(config.query_scale, config.head_dim**-0.5)
    return replace(completed(config), norm_placement="both", query_scale=None if usual else config.query_scale)


_GEMMA_2_2B = completed_around(
    ModelConfig(
        model_type="gemma2",
        vocab_size=256_000,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        rope_theta=10_000.0,
        hidden_act="gelu_pytorch_tanh",
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        sliding_window=_WINDOW,
        layer_types=_types(26),
        tie_word_embeddings=True,
        dtype="float32",
        bos_token_id=2,
        eos_token_ids=(1,),
    )
)

GEMMA2 = Family(
    model_type="gemma2",
    class_name="Gemma2ForCausalLM",
    max_position_embeddings=8192,
    num_key_value_heads=4,
    head_dim=256,
    tie_word_embeddings=True,
    bos_token_id=2,
    eos_token_ids=(1,),
    bias_keys=("attention_bias",),
    read_layers=lambda fields, layers: windows_or(fields, layers, _types(layers), _WINDOW),
    write_layers=write_windows,
    read_act=lambda fields: stated_act(fields, "hidden_activation", "gelu_pytorch_tanh"),
    act_key="hidden_activation",
    read_options=_read_options,
    write_options=_write_options,
    completed=completed_around,
    ignored={
        "hidden_act": "transformers reads hidden_activation; the published files have both",
        "cache_implementation": "which cache transformers would keep; this project brings its own",
    },
    gguf=GgufForm("gemma2", gain_offset_added=True, options=_gguf_options),
    presets={"gemma-2-2b": Preset(_GEMMA_2_2B, "https://huggingface.co/google/gemma-2-2b")},
)
