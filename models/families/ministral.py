"""Ministral: Mistral with a window in some layers."""

from __future__ import annotations

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import LAYER_TYPES
from blockexport.models.families.family import Family, LayerOptions
from blockexport.models.families.windows import DEFAULT_WINDOW, windows_or, write_windows


def _read_layers(fields: RawFields, layers: int) -> LayerOptions:
    windowed = not fields.has("sliding_window") or fields.get("sliding_window") is not None
    return windows_or(fields, layers, (LAYER_TYPES[windowed],) * layers, DEFAULT_WINDOW)


MINISTRAL = Family(
    model_type="ministral",
    class_name="MinistralForCausalLM",
    max_position_embeddings=131_072,
    num_key_value_heads=8,
    bos_token_id=1,
    eos_token_ids=(2,),
    read_layers=_read_layers,
    write_layers=write_windows,
)
