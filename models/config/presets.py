"""Well-known dimensions by name, for random weights and for arithmetic without a download.

Each preset repeats the `config.json` of the model at its URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from blockexport.models.config.model_config import ModelConfig, RopeScaling


@dataclass(frozen=True)
class Preset:
    """A config and the page it was published on (None for `tiny`, which is this project's own)."""

    config: ModelConfig
    url: str | None


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

_LLAMA_3_2_1B = ModelConfig(
    model_type="llama",
    vocab_size=128_256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    max_position_embeddings=131_072,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
    rope_scaling=RopeScaling(
        "llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    ),
    tie_word_embeddings=True,
    dtype="bfloat16",
    bos_token_id=128_000,
    eos_token_ids=(128_001,),
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

_MISTRAL_7B = ModelConfig(
    model_type="mistral",
    vocab_size=32_000,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=32_768,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    sliding_window=4096,
    layer_types=("sliding_attention",) * 32,
    dtype="bfloat16",
    bos_token_id=1,
    eos_token_ids=(2,),
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

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "llama-3-8b": Preset(_LLAMA_3_8B, "https://huggingface.co/meta-llama/Meta-Llama-3-8B"),
        "llama-3.2-1b": Preset(_LLAMA_3_2_1B, "https://huggingface.co/meta-llama/Llama-3.2-1B"),
        "smollm2-135m": Preset(_SMOLLM2_135M, "https://huggingface.co/HuggingFaceTB/SmolLM2-135M"),
        "qwen3-0.6b": Preset(_QWEN3_0_6B, "https://huggingface.co/Qwen/Qwen3-0.6B"),
        "mistral-7b": Preset(_MISTRAL_7B, "https://huggingface.co/mistralai/Mistral-7B-v0.1"),
        "tiny": Preset(_TINY, None),
    }
)
