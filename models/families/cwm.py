"""CWM, Meta's code world model: a Llama with windows in three of four layers."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import LAYER_TYPES, LayerType
from blockexport.models.families.family import LayerOptions
from blockexport.models.families.llama import LLAMA
from blockexport.models.families.windows import windows_or, write_windows

_WINDOW = 8192


def _types(layers: int) -> tuple[LayerType, ...]:
    return tuple(LAYER_TYPES[layer % 4 != 0] for layer in range(layers))


def _read_layers(fields: RawFields, layers: int) -> LayerOptions:
    if fields.get("rope_parameters") is None and fields.get("rope_scaling") is None:
        raise fields.error("there is neither rope_parameters nor rope_scaling; state how RoPE is scaled in this model")
    return windows_or(fields, layers, _types(layers), _WINDOW)


CWM = replace(
    LLAMA,
    model_type="cwm",
    class_name="CwmForCausalLM",
    max_position_embeddings=131_072,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    rope_theta=1_000_000.0,
    bos_token_id=128_000,
    eos_token_ids=(128_001, 128_008, 128_009),
    bias_keys=(),
    read_layers=_read_layers,
    write_layers=write_windows,
    gguf=None,
    presets={},
)
