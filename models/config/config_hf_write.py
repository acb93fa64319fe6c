"""A ModelConfig as a Hugging Face `config.json`, so that a bundle is also a folder transformers can open."""

from __future__ import annotations

from typing import Any

from blockexport.models.config.config_hf import config_from_hf
from blockexport.models.config.model_config import ModelConfig, RopeScaling
from blockexport.models.errors import UsageError

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def config_to_hf(config: ModelConfig) -> dict[str, Any] | None:
    """The JSON object that `config_from_hf` reads back as `config`, in the key names every transformers version knows.

    None where Hugging Face has no words for it: the RoPE factors of a GGUF file, or biases in a family without them.
    """
    if config.rope_scaling is not None and config.rope_scaling.rope_type == "freq_factors":
        return None
    data: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[config.model_type]],
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.hidden_act,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": _rope_scaling(config.rope_scaling),
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": config.dtype,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        **_family_keys(config),
    }
    try:
        return data if config_from_hf(data, "config.json") == config else None
    except UsageError:
        return None


def _rope_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    if scaling.rope_type == "linear":
        return {"rope_type": "linear", "factor": scaling.factor}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
    }


def _family_keys(config: ModelConfig) -> dict[str, Any]:
    """Keys that not every family has."""
    if config.model_type == "mistral":
        return {"sliding_window": config.sliding_window}
    if config.model_type == "llama":
        return {"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias}
    windowed: dict[str, Any] = {"use_sliding_window": config.sliding_window is not None}
    if config.sliding_window is not None:
        windowed |= {"sliding_window": config.sliding_window, "layer_types": list(config.layer_types)}
    return windowed if config.model_type == "qwen2" else {**windowed, "attention_bias": config.qkv_bias}
