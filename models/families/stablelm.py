"""StableLM: a Llama with LayerNorm, whose RoPE turns the first quarter of each head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blockexport.models.config.config_fields import RawFields, check_derived_width
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, GgufForm, Options, Preset
from blockexport.models.families.windows import full_attention


def _read_options(fields: RawFields) -> Options:
    check_derived_width(fields)
    fields.only("qk_layernorm", (False,), "norms with a gain for each head are not implemented")
    parallel = fields.flag("use_parallel_residual", False)
    return {
        "qkv_bias": fields.flag("use_qkv_bias", False),
        "residual": "parallel_one_norm" if parallel else "serial",
    }


def _write_options(config: ModelConfig) -> dict[str, Any]:
    return {"use_qkv_bias": config.qkv_bias, "use_parallel_residual": config.residual != "serial"}


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, norm="layer_norm", norm_bias=True)


_STABLELM2_1_6B = _completed(
    ModelConfig(
        model_type="stablelm",
        vocab_size=100_352,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=24,
        num_attention_heads=32,
        num_key_value_heads=32,
        head_dim=64,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        rotary_dim=16,
        qkv_bias=True,
        dtype="float16",
        bos_token_id=100_257,
        eos_token_ids=(100_257,),
    )
)

STABLELM = Family(
    model_type="stablelm",
    class_name="StableLmForCausalLM",
    max_position_embeddings=4096,
    num_key_value_heads=32,
    rms_norm_eps=1e-5,
    bos_token_id=0,
    eos_token_ids=(0,),
    keys={"rms_norm_eps": "layer_norm_eps"},
    partial_rotary_factor=0.25,
    read_options=_read_options,
    write_options=_write_options,
    completed=_completed,
    read_layers=full_attention("stablelm"),
    write_layers=lambda config: {},
    gguf=GgufForm("stablelm", eps_key="layer_norm_epsilon", partial_rotary=True, parallel_by_norms=True),
    presets={"stablelm-2-1.6b": Preset(_STABLELM2_1_6B, "https://huggingface.co/stabilityai/stablelm-2-1_6b")},
)
