"""Cohere's Command-R and Aya: attention and MLP in parallel after one norm, RoPE on neighbours, scaled logits."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, GgufForm, Options, Preset
from blockexport.models.families.windows import full_attention


def _read_options(fields: RawFields) -> Options:
    fields.only("use_qk_norm", (None, False), "norms with a gain for each head are not implemented")
    return {"logits_multiplier": fields.number("logit_scale", 0.0625)}


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, norm="layer_norm", residual="parallel_one_norm", rope_interleaved=True)


_AYA_23_8B = _completed(
    ModelConfig(
        model_type="cohere",
        vocab_size=256_000,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        logits_multiplier=0.0625,
        tie_word_embeddings=True,
        dtype="float16",
        bos_token_id=5,
        eos_token_ids=(255_001,),
    )
)

COHERE = Family(
    model_type="cohere",
    class_name="CohereForCausalLM",
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
    tie_word_embeddings=True,
    bos_token_id=5,
    eos_token_ids=(255_001,),
    bias_keys=("attention_bias",),
    keys={"rms_norm_eps": "layer_norm_eps"},
    read_layers=full_attention("cohere", "the windowed family is model_type cohere2"),
    write_layers=lambda config: {},
    read_options=_read_options,
    write_options=lambda config: {"logit_scale": config.logits_multiplier},
    completed=_completed,
    gguf=GgufForm(
        "command-r",
        eps_key="layer_norm_epsilon",
        options=lambda fields, layers: {"logits_multiplier": fields.number("command-r.logit_scale")},
    ),
    presets={"aya-23-8b": Preset(_AYA_23_8B, "https://huggingface.co/CohereForAI/aya-23-8B")},
)
