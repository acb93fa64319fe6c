"""SmolLM3: a Llama in which every fourth layer has no RoPE."""

from __future__ import annotations

from typing import Any

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, GgufForm, LayerOptions, Preset
from blockexport.models.families.windows import switched_window_keys, switched_windows
from blockexport.models.strict_json import shown


def _every_nth(layers: int, interval: int = 4) -> tuple[int, ...]:
    return tuple(range(interval - 1, layers, interval))


def _read_layers(fields: RawFields, layers: int) -> LayerOptions:
    """`no_rope_layers` says 1 for a layer that has RoPE, and wins over `no_rope_layer_interval`, as in transformers."""
    interval = fields.integer("no_rope_layer_interval", 4)
    turned = fields.get("no_rope_layers")
    if turned is None:
        turned = [layer not in _every_nth(layers, interval) for layer in range(layers)]
    elif not isinstance(turned, list) or len(turned) < layers or not {repr(one) for one in turned} <= {"0", "1"}:
        raise fields.error(
            f"no_rope_layers is {shown(turned)}; it must be a list with a 1 for each of the {layers} layers that has "
            "RoPE, and a 0 for each other"
        )
    unturned = tuple(layer for layer in range(layers) if not turned[layer])
    windows = switched_windows(fields, layers, None, lambda layer: layer in unturned)
    return windows._replace(layers_without_rope=unturned)


def _write_layers(config: ModelConfig) -> dict[str, Any]:
    turned = [int(config.has_rope(layer)) for layer in range(config.num_hidden_layers)]
    return {"no_rope_layers": turned, **switched_window_keys(config)}


_SMOLLM3_3B = ModelConfig(
    model_type="smollm3",
    vocab_size=128_256,
    hidden_size=2048,
    intermediate_size=11_008,
    num_hidden_layers=36,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=128,
    max_position_embeddings=65_536,
    rms_norm_eps=1e-6,
    rope_theta=5_000_000.0,
    layers_without_rope=_every_nth(36),
    tie_word_embeddings=True,
    dtype="bfloat16",
    bos_token_id=128_000,
    eos_token_ids=(128_012,),
)

SMOLLM3 = Family(
    model_type="smollm3",
    class_name="SmolLM3ForCausalLM",
    max_position_embeddings=32_768,
    num_key_value_heads=4,
    rope_theta=2_000_000.0,
    tie_word_embeddings=True,
    bos_token_id=128_000,
    eos_token_ids=(128_001,),
    bias_keys=("attention_bias", "mlp_bias"),
    read_layers=_read_layers,
    write_layers=_write_layers,
    ignored={
        "max_window_layers": "transformers does not read it; left behind by conversions from Qwen",
        "pretraining_tp": "transformers does not read it; the published file says 2, for how it was trained",
    },
    gguf=GgufForm(
        "smollm3", neighbour_pairs=True, options=lambda fields, layers: {"layers_without_rope": _every_nth(layers)}
    ),
    presets={"smollm3-3b": Preset(_SMOLLM3_3B, "https://huggingface.co/HuggingFaceTB/SmolLM3-3B")},
)
