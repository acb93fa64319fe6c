"""OLMo 1: LayerNorm without gains and biases."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields, check_derived_width
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, GgufForm, Options, Preset
from blockexport.models.families.windows import full_attention

_EPSILON = 1e-5


def _read_options(fields: RawFields) -> Options:
    check_derived_width(fields)
    fields.only("clip_qkv", (None,), "projections cut off at a limit are not implemented")
    fields.only("rms_norm_eps", (_EPSILON,), "transformers has no such key for olmo, whose norms add 1e-5")
    return {}


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, norm="layer_norm", norm_weight=False)


_OLMO_1B = _completed(
    ModelConfig(
        model_type="olmo",
        vocab_size=50_304,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=128,
        max_position_embeddings=2048,
        rms_norm_eps=_EPSILON,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        dtype="float32",
        eos_token_ids=(50_279,),
    )
)

OLMO = Family(
    model_type="olmo",
    class_name="OlmoForCausalLM",
    max_position_embeddings=2048,
    rms_norm_eps=_EPSILON,
    eos_token_ids=(50_279,),
    bias_keys=("attention_bias",),
    read_layers=full_attention("olmo"),
    write_layers=lambda config: {},
    read_options=_read_options,
    completed=_completed,
    gguf=GgufForm("olmo", neighbour_pairs=True, eps_key="layer_norm_epsilon"),
    presets={"olmo-1b": Preset(_OLMO_1B, "https://huggingface.co/allenai/OLMo-1B-hf")},
)
