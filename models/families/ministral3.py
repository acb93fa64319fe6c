"""Ministral 3: a Mistral with YaRN, whose queries grow with their position. Its published models also see, and are read
with --text-only.

Mistral AI 2025, https://huggingface.co/mistralai/Ministral-3-8B-Base-2512; transformers' `ministral3`.
"""

from __future__ import annotations

from typing import Any

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import ModelConfig, RopeScaling
from blockexport.models.families.family import Family, GgufForm, LayerOptions, Options, Preset
from blockexport.models.families.mistral import MISTRAL

_BETA = "llama_4_scaling_beta"


def _read_layers(fields: RawFields, layers: int) -> LayerOptions:
    """One window for every layer, or none, which is the default here."""
    if fields.has("sliding_window"):
        return MISTRAL.read_layers(fields, layers)
    return MISTRAL.read_layers(RawFields({**fields.data, "sliding_window": None}, fields.where), layers)


def _read_options(fields: RawFields) -> Options:
    """transformers has the length and the factor of this growth in RoPE's object, whatever RoPE it is of."""
    key = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    inner = RawFields({f"{key}.{name}": value for name, value in fields.get(key).items()}, fields.where)
    kind = inner.text(f"{key}.rope_type", inner.text(f"{key}.type", "default"))
    if kind != "yarn":
        raise inner.error(f"{key}.rope_type is {kind!r}, and RoPE of type 'yarn' is what {_BETA} is implemented with")
    if inner.get(f"{key}.{_BETA}") is None:
        raise inner.error(f"{key}.{_BETA} is missing; it must be a number, 0 where queries do not grow")
    beta = inner.decimal(f"{key}.{_BETA}", 0.0)
    reach = fields.integer("max_position_embeddings", MINISTRAL3.max_position_embeddings)
    length = inner.integer(f"{key}.original_max_position_embeddings", reach)
    return {"query_growth": beta, "query_growth_length": length} if beta else {}


def _gguf_options(fields: RawFields, layers: int) -> Options:
    """llama.cpp takes the length that YaRN stretches."""
    beta = fields.decimal("mistral3.attention.temperature_scale", 0.0)
    length = fields.integer("mistral3.rope.scaling.original_context_length") if beta else None
    return {"query_growth": beta or None, "query_growth_length": length}


def _write_rope(config: ModelConfig) -> dict[str, Any]:
    return {_BETA: config.query_growth or 0.0}


_MINISTRAL_3_3B = ModelConfig(
    model_type="ministral3",
    vocab_size=131_072,
    hidden_size=3072,
    intermediate_size=9216,
    num_hidden_layers=26,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=262_144,
    rms_norm_eps=1e-5,
    rope_theta=1_000_000.0,
    rope_scaling=RopeScaling("yarn", factor=16.0, original_max_position_embeddings=16_384),
    query_growth=0.1,
    query_growth_length=16_384,
    tie_word_embeddings=True,
    dtype="bfloat16",
    bos_token_id=1,
    eos_token_ids=(2,),
)

MINISTRAL3 = Family(
    model_type="ministral3",
    class_name="Ministral3ForCausalLM",
    max_position_embeddings=262_144,
    vocab_size=131_072,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_ids=(2,),
    rope_default={
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        _BETA: 0.1,
    },
    rope_keys=frozenset({_BETA, "max_position_embeddings"}),
    read_layers=_read_layers,
    write_layers=MISTRAL.write_layers,
    read_options=_read_options,
    write_rope=_write_rope,
    gguf=GgufForm("mistral3", neighbour_pairs=True, yarn=True, options=_gguf_options),
    presets={
        "ministral-3-3b": Preset(_MINISTRAL_3_3B, "https://huggingface.co/mistralai/Ministral-3-3B-Base-2512"),
    },
)
