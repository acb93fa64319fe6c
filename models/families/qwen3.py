"""Qwen3: query and key heads are normed, and a head's width is stated."""

from __future__ import annotations

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, GgufForm, Preset
from blockexport.models.families.windows import switched_window_keys, windows_of_late_layers

_QWEN3_0_6B = ModelConfig(
    model_type="qwen3",
    vocab_size=151_936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40_960,
    rms_norm_eps=1e-6,
    rope_theta=1_000_000.0,
    qk_norm=True,
    tie_word_embeddings=True,
    dtype="bfloat16",
    bos_token_id=151_643,
    eos_token_ids=(151_645,),
)

QWEN3 = Family(
    model_type="qwen3",
    class_name="Qwen3ForCausalLM",
    max_position_embeddings=32_768,
    num_key_value_heads=32,
    head_dim=128,
    bias_keys=("attention_bias",),
    qk_norm=True,
    read_layers=windows_of_late_layers,
    write_layers=switched_window_keys,
    gguf=GgufForm("qwen3"),
    presets={"qwen3-0.6b": Preset(_QWEN3_0_6B, "https://huggingface.co/Qwen/Qwen3-0.6B")},
)
