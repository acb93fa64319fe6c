"""MiniCPM 1 and 2: a Llama with Granite's multipliers, which follow from its depth and width.

Hu et al. 2024, https://arxiv.org/abs/2404.06395, section 3. Its code comes with its files, and is not in transformers.
"""

from __future__ import annotations

import math
from dataclasses import replace

from blockexport.models.config.config_fields import RawFields, check_derived_width
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, GgufForm, Options, Preset
from blockexport.models.families.windows import full_attention


def _read_options(fields: RawFields) -> Options:
    check_derived_width(fields)
    width, depth = fields.integer("hidden_size"), fields.integer("num_hidden_layers")
    return {
        "embedding_multiplier": fields.number("scale_emb", 1.0),
        "residual_multiplier": fields.number("scale_depth", 1.0) / math.sqrt(depth),
        "logits_multiplier": 1.0 / (width / fields.number("dim_model_base", 1.0)),
    }


def _gguf_options(fields: RawFields, layers: int) -> Options:
    """Where one is missing, llama.cpp takes what one size of the model has."""
    return {
        "embedding_multiplier": fields.number("minicpm.embedding_scale"),
        "residual_multiplier": fields.number("minicpm.residual_scale"),
        "logits_multiplier": 1.0 / fields.number("minicpm.logit_scale"),
    }


def _completed(config: ModelConfig) -> ModelConfig:
    """The usual scale of queries is stated, as it has to be in a Granite."""
    return replace(config, query_scale=config.head_dim**-0.5)


_MINICPM_2B = _completed(
    ModelConfig(
        model_type="minicpm",
        vocab_size=122_753,
        hidden_size=2304,
        intermediate_size=5760,
        num_hidden_layers=40,
        num_attention_heads=36,
        num_key_value_heads=36,
        head_dim=64,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        embedding_multiplier=12.0,
        residual_multiplier=1.4 / math.sqrt(40),
        logits_multiplier=1.0 / 9.0,
        tie_word_embeddings=True,
        dtype="bfloat16",
        bos_token_id=1,
        eos_token_ids=(2,),
    )
)

MINICPM = Family(
    model_type="minicpm",
    class_name="MiniCPMForCausalLM",
    max_position_embeddings=2048,
    vocab_size=32_000,
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_ids=(2,),
    bias_keys=("attention_bias",),
    read_layers=full_attention("minicpm"),
    write_layers=lambda config: {},
    read_options=_read_options,
    completed=_completed,
    written_as="granite",
    ignored={"auto_map": "names the modelling code, which is not in transformers"},
    gguf=GgufForm("minicpm", neighbour_pairs=True, options=_gguf_options),
    presets={"minicpm-2b": Preset(_MINICPM_2B, "https://huggingface.co/openbmb/MiniCPM-2B-sft-bf16")},
)
