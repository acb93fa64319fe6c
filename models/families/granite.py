"""Granite 3 and the dense ones after it: a Llama whose embedding, residuals, scores and logits are multiplied."""

from __future__ import annotations

from typing import Any

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, GgufForm, Options, Preset
from blockexport.models.families.windows import full_attention


def _read_options(fields: RawFields) -> Options:
    return {
        "embedding_multiplier": fields.number("embedding_multiplier", 1.0),
        "residual_multiplier": fields.number("residual_multiplier", 1.0),
        "query_scale": fields.number("attention_multiplier", 1.0),
        "logits_multiplier": 1.0 / fields.number("logits_scaling", 1.0),
    }


def _write_options(config: ModelConfig) -> dict[str, Any]:
    return {
        "embedding_multiplier": config.embedding_multiplier,
        "residual_multiplier": config.residual_multiplier,
        "attention_multiplier": config.score_scale,
        "logits_scaling": float(f"{1.0 / config.logits_multiplier:.12g}"),  # 49, and not 49.00000000000001
    }


def _gguf_options(fields: RawFields, layers: int) -> Options:
    """llama.cpp skips a factor of 0, and takes 1/sqrt(H) for a missing scale of attention."""

    def factor(key: str) -> float:
        value = fields.decimal(f"granite.{key}", 0.0)
        return value or 1.0

    scale = fields.decimal("granite.attention.scale", 0.0)
    return {
        "embedding_multiplier": factor("embedding_scale"),
        "residual_multiplier": factor("residual_scale"),
        "query_scale": scale or None,
        "logits_multiplier": 1.0 / factor("logit_scale"),
    }


_GRANITE_3_3_2B = ModelConfig(
    model_type="granite",
    vocab_size=49_159,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=40,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    max_position_embeddings=131_072,
    rms_norm_eps=1e-5,
    rope_theta=10_000_000.0,
    query_scale=0.015625,
    embedding_multiplier=12.0,
    residual_multiplier=0.22,
    logits_multiplier=1.0 / 8.0,
    tie_word_embeddings=True,
    dtype="bfloat16",
    bos_token_id=0,
    eos_token_ids=(0,),
)

GRANITE = Family(
    model_type="granite",
    class_name="GraniteForCausalLM",
    max_position_embeddings=2048,
    bos_token_id=1,
    eos_token_ids=(2,),
    bias_keys=("attention_bias", "mlp_bias"),
    read_layers=full_attention("granite"),
    write_layers=lambda config: {},
    read_options=_read_options,
    write_options=_write_options,
    gguf=GgufForm("granite", neighbour_pairs=True, options=_gguf_options),
    presets={"granite-3.3-2b": Preset(_GRANITE_3_3_2B, "https://huggingface.co/ibm-granite/granite-3.3-2b-instruct")},
)
