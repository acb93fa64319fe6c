"""EXAONE 4: norms after the sublayers, QK-norm, and in models with windows RoPE in the layers that have one alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import LAYER_TYPES, LayerType, ModelConfig
from blockexport.models.families.family import Family, GgufForm, LayerOptions, Options
from blockexport.models.families.windows import stated_layer_types
from blockexport.models.strict_json import shown

_WINDOW, _PATTERN = 4096, 4
_LAYERS_OF_32B = 64


def _types(layers: int, pattern: int = _PATTERN) -> tuple[LayerType, ...]:
    return tuple(LAYER_TYPES[(layer + 1) % pattern != 0] for layer in range(layers))


def _with_window(window: int, types: tuple[LayerType, ...]) -> LayerOptions:
    full = tuple(layer for layer, kind in enumerate(types) if kind == "full_attention")
    return LayerOptions(window, types, full) if "sliding_attention" in types else LayerOptions(layers_without_rope=full)


def _read_layers(fields: RawFields, layers: int) -> LayerOptions:
    """With a window, wherever it is, the layers that have none have no RoPE either."""
    types = stated_layer_types(fields, layers)
    window = fields.optional_integer("sliding_window", _WINDOW)
    pattern = fields.get("sliding_window_pattern") if fields.has("sliding_window_pattern") else _PATTERN
    if types is None and (type(pattern) is not int or pattern < 1 or window is None):
        raise fields.error(
            f"sliding_window is {shown(window)}, sliding_window_pattern is {shown(pattern)} and there are no "
            "layer_types, of which transformers makes no layers; state layer_types"
        )
    types = types or _types(layers, int(pattern))
    if window is not None:
        return _with_window(window, types)
    if "sliding_attention" in types:
        raise fields.error("sliding_window is null and some layers have sliding_attention; give the window")
    return LayerOptions()


def _write_layers(config: ModelConfig) -> dict[str, Any]:
    types = config.layer_types or ("full_attention",) * config.num_hidden_layers
    return {"sliding_window": config.sliding_window, "layer_types": list(types)}


def _gguf_options(fields: RawFields, layers: int) -> Options:
    """llama.cpp knows the model with windows by the number of its layers."""
    if layers != _LAYERS_OF_32B:
        return {}
    window = fields.integer("exaone4.attention.sliding_window", _WINDOW)
    return _with_window(window, _types(layers))._asdict()


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, norm_placement="post")


EXAONE4 = Family(
    model_type="exaone4",
    class_name="Exaone4ForCausalLM",
    max_position_embeddings=2048,
    num_key_value_heads=32,
    rms_norm_eps=1e-5,
    bos_token_id=0,
    eos_token_ids=(2,),
    qk_norm=True,
    read_layers=_read_layers,
    write_layers=_write_layers,
    completed=_completed,
    gguf=GgufForm("exaone4", rope_factors=True, options=_gguf_options),
)
