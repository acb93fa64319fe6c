"""GLM-4 of 2024: RoPE on neighbours in half of each head, biases on q, k and v, gate and up in one matrix."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, GgufForm, Options
from blockexport.models.families.windows import full_attention


def _read_options(fields: RawFields) -> Options:
    """`attention_bias` is for q, k and v alone."""
    return {"o_bias": False}


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, rope_interleaved=True)


_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")

GLM = Family(
    model_type="glm",
    class_name="GlmForCausalLM",
    max_position_embeddings=131_072,
    num_key_value_heads=2,
    head_dim=128,
    rms_norm_eps=1.5625e-7,
    eos_token_ids=(151_329, 151_336, 151_338),
    bias_keys=("attention_bias",),
    bias_default=True,
    partial_rotary_factor=0.5,
    fused={"mlp.gate_up_proj": _GATE_UP},
    read_layers=full_attention("glm"),
    write_layers=lambda config: {},
    read_options=_read_options,
    completed=_completed,
    gguf=GgufForm("chatglm", fused={"self_attn.qkv_proj": _QKV, "mlp.up_proj": _GATE_UP}, partial_rotary=True),
)
