"""A ModelConfig as a Hugging Face `config.json`, so that a bundle is also a folder transformers can open."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from blockexport.models.config.model_config import ModelConfig, RopeScaling
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import FAMILIES
from blockexport.models.families.family import Family
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
    family = FAMILIES[config.model_type]
    if family.written_as is not None:
        return config_to_hf(replace(config, model_type=family.written_as))
    return None if family.tensor_names or family.fused else _stated(config, family)


def in_some_family(config: ModelConfig) -> tuple[ModelConfig, dict[str, Any]] | None:
    """A config with the `model_type` of a family that has all of its options, and the `config.json` that says so.

    Its own family comes first, then those whose checkpoints have tensors as they are here. None where no family has
    these options together.
    """
    own = sorted(
        (family for family in FAMILIES.values() if family.written_as is None and not family.fused_by_head),
        key=lambda family: (family.model_type != config.model_type, len(family.tensor_names) + len(family.fused)),
    )
    for family in own:
        named = replace(config, model_type=family.model_type)
        if (data := _stated(named, family)) is not None:
            return named, data
    return None


def _stated(config: ModelConfig, family: Family) -> dict[str, Any] | None:
    """The JSON object in the family's own keys, where that is read back as `config`."""
    if config.rope_scaling is not None and config.rope_scaling.freq_factors:
        return None
    biases = {"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias}
    partial = {}
    if family.partial_rotary_factor is not None:
        partial[family.keys.get(_PARTIAL, _PARTIAL)] = config.turned_dims / config.head_dim
    names = [name for name in _SAME_NAMES if name != "rope_theta" or not family.learned_positions]
    data: dict[str, Any] = {
        "architectures": [family.class_name],
        **{family.keys.get(name, name): getattr(config, name) for name in names},
        **partial,
        family.act_key: config.hidden_act,
        "rope_scaling": _rope_scaling(config.rope_scaling, family.write_rope(config)),
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


def _rope_scaling(scaling: RopeScaling | None, more: dict[str, Any]) -> dict[str, Any] | None:
    if scaling is None:
        return None
    if scaling.rope_type == "ntk_alpha":
        return {"rope_type": "dynamic", "alpha": scaling.factor, **more}
    said = asdict(scaling)
    names = ("rope_type", "factor", *_SCALING_KEYS.get(scaling.rope_type, ()))
    return {**{name: said[name] for name in names}, **more}


_SCALING_KEYS = {
    "llama3": ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("original_max_position_embeddings", "beta_fast", "beta_slow", "truncate", "attention_factor"),
}
