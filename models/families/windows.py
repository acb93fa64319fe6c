"""Which layers have a sliding window, as transformers decides it in more than one family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import LAYER_TYPES, LayerType, ModelConfig
from blockexport.models.families.family import LayerOptions
from blockexport.models.strict_json import shown

DEFAULT_WINDOW = 4096  # where the key is absent
_DEFAULT_FULL_LAYERS = 28


def stated_layer_types(fields: RawFields, layers: int) -> tuple[LayerType, ...] | None:
    """The key `layer_types`. Raises UsageError when it is not one known type for each layer."""
    value = fields.get("layer_types")
    if value is None:
        return None
    if not isinstance(value, list | tuple) or any(item not in LAYER_TYPES for item in value):
        raise fields.error(f"layer_types is {shown(value)}; it must be a list of {' and '.join(LAYER_TYPES)}")
    if len(value) != layers:
        raise fields.error(f"layer_types has {len(value)} entries and num_hidden_layers is {layers}; they must match")
    return cast("tuple[LayerType, ...]", tuple(value))


def full_attention(model_type: str, hint: str = "") -> Callable[[RawFields, int], LayerOptions]:
    """No windows: `read_layers` of a family without them. `hint` says which family has them."""
    why = f"{model_type} has full attention" + (f"; {hint}" if hint else "")

    def read(fields: RawFields, layers: int) -> LayerOptions:
        types = stated_layer_types(fields, layers)
        fields.only("sliding_window", (None,), why)
        fields.only("use_sliding_window", (False,), why)
        if types is not None and "sliding_attention" in types:
            raise fields.error(f"layer_types has sliding_attention, and {model_type} has full attention in every layer")
        return LayerOptions()

    return read


def windows_or(
    fields: RawFields, layers: int, default_types: tuple[LayerType, ...], default_window: int
) -> LayerOptions:
    """The window and the layers that have it, with what they are where no key says it."""
    types = stated_layer_types(fields, layers) or default_types
    window = fields.optional_integer("sliding_window", default_window)
    if "sliding_attention" not in types:
        return LayerOptions()
    if window is None:
        raise fields.error("sliding_window is null and some layers have sliding_attention; give the window")
    return LayerOptions(window, types)


def write_windows(config: ModelConfig) -> dict[str, Any]:
    """The keys that `windows_or` reads. Without a window the key is absent: transformers' masks fail on null, though no
    layer has one."""
    if not config.layer_types:
        return {"layer_types": ["full_attention"] * config.num_hidden_layers}
    return {"sliding_window": config.sliding_window, "layer_types": list(config.layer_types)}


def window_everywhere(model_type: str) -> Callable[[RawFields, int], LayerOptions]:
    """`read_layers` of a family in which `sliding_window` is that of every layer."""

    def read(fields: RawFields, layers: int) -> LayerOptions:
        types = stated_layer_types(fields, layers)
        window = fields.optional_integer("sliding_window")
        expected: LayerType = "full_attention" if window is None else "sliding_attention"
        if types is not None and types != (expected,) * layers:
            told = fields.told("sliding_window", window)
            raise fields.error(f"{told}, with which every {model_type} layer is {expected}; correct it or layer_types")
        return LayerOptions() if window is None else LayerOptions(window, (expected,) * layers)

    return read


def windows_of_late_layers(fields: RawFields, layers: int) -> LayerOptions:
    """Where `layer_types` is absent, the layers from `max_window_layers` on have the window."""
    first = fields.integer("max_window_layers", _DEFAULT_FULL_LAYERS, minimum=0)
    return switched_windows(fields, layers, DEFAULT_WINDOW, lambda layer: layer >= first)


def switched_windows(
    fields: RawFields, layers: int, default: int | None, has_window: Callable[[int], bool]
) -> LayerOptions:
    """A window that `use_sliding_window` switches on, in the layers that `layer_types` names.

    Args:
        fields: of the config.
        layers: how many there are.
        default: the window where `sliding_window` is absent.
        has_window: of a layer, where `layer_types` is absent.

    Raises:
        UsageError: the keys disagree.
    """
    types = stated_layer_types(fields, layers)
    enabled = fields.flag("use_sliding_window", False)
    window = fields.optional_integer("sliding_window", default)
    if enabled and window is None:
        raise fields.error("use_sliding_window is true and sliding_window is null; give the window or turn it off")
    if types is None:
        types = tuple(LAYER_TYPES[enabled and has_window(layer)] for layer in range(layers))
    if "sliding_attention" not in types:
        return LayerOptions()
    if not enabled:
        raise fields.error(
            f"layer_types has sliding_attention and {fields.told('use_sliding_window', False)}; set "
            " use_sliding_window to true, or make the layers full_attention"
        )
    return LayerOptions(window, types)


def switched_window_keys(config: ModelConfig) -> dict[str, Any]:
    """The keys that `switched_windows` reads."""
    if config.sliding_window is None:
        return {"use_sliding_window": False}
    return {
        "use_sliding_window": True,
        "sliding_window": config.sliding_window,
        "layer_types": list(config.layer_types),
    }
