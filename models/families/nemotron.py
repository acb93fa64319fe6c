"""Nemotron: LayerNorm that multiplies by 1 + weight, squared ReLU without a gate, RoPE on half of each head."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.activations import stated_act
from blockexport.models.families.family import Family, GgufForm, Preset
from blockexport.models.families.windows import full_attention


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, norm="layer_norm", norm_bias=True, norm_gain_offset=True, gated_mlp=False)


_MINITRON_4B = _completed(
    ModelConfig(
        model_type="nemotron",
        vocab_size=256_000,
        hidden_size=3072,
        intermediate_size=9216,
        num_hidden_layers=32,
        num_attention_heads=24,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        rotary_dim=64,
        hidden_act="relu2",
        dtype="bfloat16",
        bos_token_id=2,
        eos_token_ids=(3,),
    )
)

NEMOTRON = Family(
    model_type="nemotron",
    class_name="NemotronForCausalLM",
    max_position_embeddings=4096,
    rms_norm_eps=1e-5,
    bos_token_id=2,
    eos_token_ids=(3,),
    bias_keys=("attention_bias", "mlp_bias"),
    keys={"rms_norm_eps": "norm_eps"},
    partial_rotary_factor=0.5,
    read_act=lambda fields: stated_act(fields, "hidden_act", "relu2"),
    read_layers=full_attention("nemotron"),
    write_layers=lambda config: {},
    completed=_completed,
    gguf=GgufForm(
        "nemotron",
        more_biases=True,
        gain_offset_added=True,
        eps_key="layer_norm_epsilon",
        partial_rotary=True,
        options=lambda fields, layers: {"hidden_act": "relu2"},
    ),
    presets={"minitron-4b": Preset(_MINITRON_4B, "https://huggingface.co/nvidia/Minitron-4B-Base")},
)
