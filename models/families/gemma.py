"""Gemma 1: norms multiply by 1 + weight, the MLP is a GeGLU, and the embedding is multiplied by sqrt(D)."""

from __future__ import annotations

import math
from dataclasses import replace

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import HiddenAct, ModelConfig
from blockexport.models.families.activations import stated_act
from blockexport.models.families.family import Family, GgufForm, Options, Preset
from blockexport.models.families.windows import full_attention


def _read_act(fields: RawFields) -> HiddenAct:
    """The first files say `gelu` and mean its approximation by tanh; `hidden_activation` may repeat the meaning."""
    fields.only("hidden_activation", (None, "gelu_pytorch_tanh"), "gemma's activation is hidden_act")
    act = stated_act(fields, "hidden_act", "gelu_pytorch_tanh")
    return "gelu_pytorch_tanh" if act == "gelu" else act


def causal_only(fields: RawFields) -> Options:
    """Gemma's `read_options`: attention in both directions is refused."""
    why = "a token would see those after it, which a cache does not have"
    fields.only("use_bidirectional_attention", (None, False), why)
    return {}


def completed(config: ModelConfig) -> ModelConfig:
    """What all Gemmas have."""
    return replace(config, norm_gain_offset=True, embedding_multiplier=math.sqrt(config.hidden_size))


_GEMMA_2B = completed(
    ModelConfig(
        model_type="gemma",
        vocab_size=256_000,
        hidden_size=2048,
        intermediate_size=16_384,
        num_hidden_layers=18,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=256,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        rope_theta=10_000.0,
        hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True,
        dtype="bfloat16",
        bos_token_id=2,
        eos_token_ids=(1,),
    )
)

GEMMA = Family(
    model_type="gemma",
    class_name="GemmaForCausalLM",
    max_position_embeddings=8192,
    num_key_value_heads=16,
    head_dim=256,
    tie_word_embeddings=True,
    bos_token_id=2,
    eos_token_ids=(1,),
    bias_keys=("attention_bias",),
    read_layers=full_attention("gemma", "the windowed families are model_type gemma2 and gemma3_text"),
    write_layers=lambda config: {},
    read_act=_read_act,
    read_options=causal_only,
    completed=completed,
    gguf=GgufForm("gemma", gain_offset_added=True, options=lambda fields, layers: {"hidden_act": "gelu_pytorch_tanh"}),
    presets={"gemma-2b": Preset(_GEMMA_2B, "https://huggingface.co/google/gemma-2b")},
)
