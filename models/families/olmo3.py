"""OLMo 3: OLMo 2 with windows in three of four layers, whose RoPE stays as it was where the others' is scaled."""

from __future__ import annotations

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import LAYER_TYPES, LayerType, ModelConfig, RopeScaling
from blockexport.models.families.family import Family, LayerOptions, Preset
from blockexport.models.families.olmo2 import completed
from blockexport.models.families.windows import windows_or, write_windows

_WINDOW, _BASE = 4096, 500_000.0


def _types(layers: int) -> tuple[LayerType, ...]:
    return tuple(LAYER_TYPES[(layer + 1) % 4 != 0] for layer in range(layers))


def _read_layers(fields: RawFields, layers: int) -> LayerOptions:
    return windows_or(fields, layers, _types(layers), _WINDOW)


_OLMO3_7B = completed(
    ModelConfig(
        model_type="olmo3",
        vocab_size=100_278,
        hidden_size=4096,
        intermediate_size=11_008,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        head_dim=128,
        max_position_embeddings=65_536,
        rms_norm_eps=1e-6,
        rope_theta=_BASE,
        rope_scaling=RopeScaling(
            "yarn", factor=8.0, original_max_position_embeddings=8192, attention_factor=1.2079441541679836
        ),
        qk_norm=True,
        sliding_window=_WINDOW,
        layer_types=_types(32),
        sliding_rope_theta=_BASE,
        dtype="bfloat16",
        eos_token_ids=(100_257,),
    )
)

OLMO3 = Family(
    model_type="olmo3",
    class_name="Olmo3ForCausalLM",
    max_position_embeddings=2048,
    rms_norm_eps=1e-5,
    rope_theta=_BASE,
    sliding_rope_theta=_BASE,
    eos_token_ids=(50_279,),
    bias_keys=("attention_bias",),
    qk_norm=True,
    read_layers=_read_layers,
    write_layers=write_windows,
    completed=completed,
    presets={"olmo3-7b": Preset(_OLMO3_7B, "https://huggingface.co/allenai/Olmo-3-1025-7B")},
)
