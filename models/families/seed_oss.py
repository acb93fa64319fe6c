"""Seed-OSS: a Llama with biases on q, k and v, and a key of its own for that of o."""

from __future__ import annotations

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, GgufForm, Options, Preset
from blockexport.models.families.windows import full_attention


def _read_options(fields: RawFields) -> Options:
    return {"qkv_bias": fields.flag("attention_bias", True), "o_bias": fields.flag("attention_out_bias", False)}


_SEED_OSS_36B = ModelConfig(
    model_type="seed_oss",
    vocab_size=155_136,
    hidden_size=5120,
    intermediate_size=27_648,
    num_hidden_layers=64,
    num_attention_heads=80,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=524_288,
    rms_norm_eps=1e-6,
    rope_theta=10_000_000.0,
    qkv_bias=True,
    dtype="bfloat16",
    bos_token_id=0,
    eos_token_ids=(2,),
)

SEED_OSS = Family(
    model_type="seed_oss",
    class_name="SeedOssForCausalLM",
    max_position_embeddings=524_288,
    num_key_value_heads=8,
    head_dim=128,
    bos_token_id=0,
    eos_token_ids=(2,),
    bias_keys=("attention_bias", "mlp_bias"),
    read_layers=full_attention("seed_oss"),
    write_layers=lambda config: {},
    read_options=_read_options,
    write_options=lambda config: {"attention_out_bias": config.o_bias},
    ignored={"residual_dropout": "only matters in training"},
    gguf=GgufForm("seed_oss", mlp_norm="post_attention_norm"),
    presets={"seed-oss-36b": Preset(_SEED_OSS_36B, "https://huggingface.co/ByteDance-Seed/Seed-OSS-36B-Instruct")},
)
