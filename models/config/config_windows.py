"""Which layers of a Hugging Face model have a sliding window, as transformers' modelling files decide it.

llama has none; in mistral the window is for every layer; in qwen2 and qwen3 `layer_types` decides, or, when it is
absent, `use_sliding_window` with `max_window_layers`.
"""

from __future__ import annotations

from typing import cast

from blockexport.models.config.config_fields import RawFields, shown
from blockexport.models.config.config_rope import LAYER_TYPES
from blockexport.models.config.model_config import LayerType

Windows = tuple[int | None, tuple[LayerType, ...]]
ALL_FULL: Windows = (None, ())
DEFAULT_WINDOW = 4096  # of mistral, qwen2 and qwen3 when the key is absent
DEFAULT_FULL_LAYERS = 28  # qwen: layers before `max_window_layers` are full


def windows_from_hf(fields: RawFields, model_type: str, layers: int) -> Windows:
    """The window and each layer's type; `(None, ())` when every layer sees the whole prefix.

    Raises UsageError when the keys about windows disagree.
    """
    types = _layer_types(fields, layers)
    if model_type == "llama":
        return _llama(fields, types)
    if model_type == "mistral":
        return _mistral(fields, types, layers)
    return _qwen(fields, types, layers)


def _layer_types(fields: RawFields, layers: int) -> tuple[LayerType, ...] | None:
    value = fields.get("layer_types")
    if value is None:
        return None
    if not isinstance(value, list | tuple) or any(item not in LAYER_TYPES for item in value):
        raise fields.error(f"layer_types is {shown(value)}; it must be a list of {' and '.join(LAYER_TYPES)}")
    if len(value) != layers:
        raise fields.error(f"layer_types has {len(value)} entries and num_hidden_layers is {layers}; they must match")
    return cast("tuple[LayerType, ...]", tuple(value))


def _llama(fields: RawFields, types: tuple[LayerType, ...] | None) -> Windows:
    fields.only("sliding_window", (None,), "llama has full attention; the windowed family is model_type mistral")
    fields.only("use_sliding_window", (False,), "llama has full attention; the windowed family is model_type mistral")
    fields.get("max_window_layers")  # says nothing without a window; left behind by conversions from Qwen
    if types is not None and "sliding_attention" in types:
        raise fields.error("layer_types has sliding_attention, and llama has full attention in every layer")
    return ALL_FULL


def _mistral(fields: RawFields, types: tuple[LayerType, ...] | None, layers: int) -> Windows:
    window = fields.optional_integer("sliding_window", DEFAULT_WINDOW)
    expected: LayerType = "full_attention" if window is None else "sliding_attention"
    fields.only("use_sliding_window", (window is not None,), fields.told("sliding_window", window))
    if types is not None and types != (expected,) * layers:
        raise fields.error(
            f"layer_types is {shown(types)} and {fields.told('sliding_window', window)}, with which every mistral "
            f"layer is {expected}; correct one of them"
        )
    if window is None:
        fields.get("max_window_layers")
        return ALL_FULL
    return window, (expected,) * layers


def _qwen(fields: RawFields, types: tuple[LayerType, ...] | None, layers: int) -> Windows:
    enabled = fields.flag("use_sliding_window", False)
    window = fields.optional_integer("sliding_window", DEFAULT_WINDOW)
    full_layers = fields.integer("max_window_layers", DEFAULT_FULL_LAYERS, minimum=0)
    if enabled and window is None:
        raise fields.error("use_sliding_window is true and sliding_window is null; give the window or turn it off")
    first = full_layers if enabled else layers  # the first layer with a window
    by_number: tuple[LayerType, ...] = tuple(
        "sliding_attention" if layer >= first else "full_attention" for layer in range(layers)
    )
    resolved = by_number if types is None else types
    if "sliding_attention" not in resolved:
        return ALL_FULL
    if not enabled:
        raise fields.error(
            f"layer_types has sliding_attention and {fields.told('use_sliding_window', False)}; set "
            " use_sliding_window to true, or make the layers full_attention"
        )
    return window, resolved
