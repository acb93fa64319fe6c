"""Llama, and all that is published as one: SmolLM2, TinyLlama, DeepSeek's first models."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.model_config import ModelConfig, RopeScaling
from blockexport.models.families.family import Family, GgufForm, Preset
from blockexport.models.families.windows import full_attention

_LLAMA_3_8B = ModelConfig(
    model_type="llama",
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
    dtype="bfloat16",
    bos_token_id=128_000,
    eos_token_ids=(128_001,),
)

_LLAMA_3_2_1B = replace(
    _LLAMA_3_8B,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    head_dim=64,
    max_position_embeddings=131_072,
    rope_scaling=RopeScaling(
        "llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    ),
    tie_word_embeddings=True,
)

_SMOLLM2_135M = ModelConfig(
    model_type="llama",
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=100_000.0,
    tie_word_embeddings=True,
    dtype="bfloat16",
    bos_token_id=0,
    eos_token_ids=(0,),
)

# Every dimension is different, N * H and K * H included, so that no two can be mixed up without a shape error.
_TINY = ModelConfig(
    model_type="llama",
    vocab_size=331,
    hidden_size=48,
    intermediate_size=88,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    bos_token_id=1,
    eos_token_ids=(2,),
)

LLAMA = Family(
    model_type="llama",
    class_name="LlamaForCausalLM",
    max_position_embeddings=2048,
    bos_token_id=1,
    eos_token_ids=(2,),
    bias_keys=("attention_bias", "mlp_bias"),
    read_layers=full_attention("llama", "the windowed family is model_type mistral"),
    write_layers=lambda config: {},
    ignored={"max_window_layers": "says nothing without a window; left behind by conversions from Qwen"},
    gguf=GgufForm("llama", neighbour_pairs=True, more_biases=True, rope_factors=True),
    presets={
        "llama-3-8b": Preset(_LLAMA_3_8B, "https://huggingface.co/meta-llama/Meta-Llama-3-8B"),
        "llama-3.2-1b": Preset(_LLAMA_3_2_1B, "https://huggingface.co/meta-llama/Llama-3.2-1B"),
        "smollm2-135m": Preset(_SMOLLM2_135M, "https://huggingface.co/HuggingFaceTB/SmolLM2-135M"),
        "tiny": Preset(_TINY, None),
    },
)
