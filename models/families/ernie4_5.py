"""ERNIE 4.5, the dense models: a Llama whose RoPE turns neighbours."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, GgufForm, Options, Preset
from blockexport.models.families.windows import full_attention


def _read_options(fields: RawFields) -> Options:
    return dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), fields.flag("use_bias", False))


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, rope_interleaved=True)


_ERNIE_0_3B = _completed(
    ModelConfig(
        model_type="ernie4_5",
        vocab_size=103_424,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=18,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        tie_word_embeddings=True,
        dtype="bfloat16",
        bos_token_id=1,
        eos_token_ids=(2,),
    )
)

ERNIE4_5 = Family(
    model_type="ernie4_5",
    class_name="Ernie4_5ForCausalLM",
    max_position_embeddings=131_072,
    num_key_value_heads=2,
    head_dim=128,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_ids=(2,),
    read_layers=full_attention("ernie4_5"),
    write_layers=lambda config: {},
    read_options=_read_options,
    write_options=lambda config: {"use_bias": config.o_bias},
    completed=_completed,
    gguf=GgufForm("ernie4_5"),
    presets={"ernie-4.5-0.3b": Preset(_ERNIE_0_3B, "https://huggingface.co/baidu/ERNIE-4.5-0.3B-PT")},
)
