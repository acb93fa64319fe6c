"""A ModelConfig as a Hugging Face `config.json`, so that a bundle is also a folder transformers can open."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from blockexport.models.config.model_config import ModelConfig, RopeScaling
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import FAMILIES
from blockexport.models.formats.config_hf import config_from_hf

_SAME_NAMES = (
    "model_type",
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
    *("max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "bos_token_id"),
)
_PARTIAL = "partial_rotary_factor"


def config_to_hf(config: ModelConfig) -> dict[str, Any] | None:
    """The JSON object that `config_from_hf` reads back as `config`, in the key names every transformers version knows.

    None where Hugging Face has no words for it: RoPE factors of each pair, biases in a family without them, or
    tensors that the family calls otherwise than a bundle.
    """
    if config.rope_scaling is not None and config.rope_scaling.freq_factors:
        return None
    family = FAMILIES[config.model_type]
    if family.tensor_names:
        return None
    if family.written_as is not None:
        return config_to_hf(replace(config, model_type=family.written_as))
    biases = {"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias}
    partial = {}
    if family.partial_rotary_factor is not None:
        partial[family.keys.get(_PARTIAL, _PARTIAL)] = config.turned_dims / config.head_dim
    data: dict[str, Any] = {
        "architectures": [family.class_name],
        **{family.keys.get(name, name): getattr(config, name) for name in _SAME_NAMES},
        **partial,
        family.act_key: config.hidden_act,
        "rope_scaling": _rope_scaling(config.rope_scaling),
        "torch_dtype": config.dtype,
        "eos_token_id": list(config.eos_token_ids) or None,
        **{key: biases[key] for key in family.bias_keys},
        **family.write_layers(config),
        **family.write_options(config),
    }
    try:
        return data if config_from_hf(data, "config.json") == config else None
    except UsageError:
        return None


def _rope_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    said = asdict(scaling)
    return {name: said[name] for name in ("rope_type", "factor", *_SCALING_KEYS.get(scaling.rope_type, ()))}


_SCALING_KEYS = {
    "llama3": ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("original_max_position_embeddings", "beta_fast", "beta_slow", "truncate", "attention_factor"),
}
