"""Mistral: one window for every layer, or none. llama.cpp stores it as a Llama."""

from __future__ import annotations

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import LayerType, ModelConfig
from blockexport.models.families.family import Family, LayerOptions, Preset
from blockexport.models.families.windows import DEFAULT_WINDOW, stated_layer_types
from blockexport.models.strict_json import shown


def _window_everywhere(fields: RawFields, layers: int) -> LayerOptions:
    types = stated_layer_types(fields, layers)
    window = fields.optional_integer("sliding_window", DEFAULT_WINDOW)
    expected: LayerType = "full_attention" if window is None else "sliding_attention"
    told = fields.told("sliding_window", window)
    fields.only("use_sliding_window", (window is not None,), told)
    if types is not None and types != (expected,) * layers:
        raise fields.error(
            f"layer_types is {shown(types)} and {told}, with which every mistral layer is {expected}; correct one of "
            "them"
        )
    if window is None:
        fields.get("max_window_layers")  # says nothing without a window
        return LayerOptions()
    return LayerOptions(window, (expected,) * layers)


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

MISTRAL = Family(
    model_type="mistral",
    class_name="MistralForCausalLM",
    max_position_embeddings=131_072,
    num_key_value_heads=8,
    bos_token_id=1,
    eos_token_ids=(2,),
    read_layers=_window_everywhere,
    write_layers=lambda config: {"sliding_window": config.sliding_window},
    presets={"mistral-7b": Preset(_MISTRAL_7B, "https://huggingface.co/mistralai/Mistral-7B-v0.1")},
)
