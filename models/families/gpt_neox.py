"""GPT-NeoX and Pythia: attention and MLP side by side, each with its LayerNorm, and RoPE on a part of each head.

Its checkpoints have q, k and v in one matrix, head by head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blockexport.models.config.config_fields import RawFields, check_derived_width, check_no_groups
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.activations import stated_act
from blockexport.models.families.family import Family, GgufForm, Options, Preset
from blockexport.models.families.windows import full_attention


def _residual(parallel: bool) -> Options:
    return {"residual": "parallel" if parallel else "serial"}


def _read_options(fields: RawFields) -> Options:
    check_derived_width(fields)
    check_no_groups(fields)
    fields.only("mlp_bias", (None,), "gpt_neox always has biases in its MLP")
    return {"mlp_bias": True, **_residual(fields.flag("use_parallel_residual", True))}


def _write_options(config: ModelConfig) -> dict[str, Any]:
    return {"use_parallel_residual": config.residual != "serial"}


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, norm="layer_norm", norm_bias=True, gated_mlp=False)


def _gguf_options(fields: RawFields, layers: int) -> Options:
    # llama.cpp takes GELU by tanh, whatever the model was trained with; the file does not say.
    act = {"hidden_act": "gelu_pytorch_tanh"}
    return {**act, **_residual(fields.flag("gptneox.use_parallel_residual", True))}


_PYTHIA_1_4B = _completed(
    ModelConfig(
        model_type="gpt_neox",
        vocab_size=50_304,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=128,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        rotary_dim=32,
        residual="parallel",
        hidden_act="gelu",
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        dtype="float16",
        bos_token_id=0,
        eos_token_ids=(0,),
    )
)
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

GPT_NEOX = Family(
    model_type="gpt_neox",
    class_name="GPTNeoXForCausalLM",
    max_position_embeddings=2048,
    rms_norm_eps=1e-5,
    bos_token_id=0,
    eos_token_ids=(2,),
    bias_keys=("attention_bias",),
    bias_default=True,
    keys={
        "rms_norm_eps": "layer_norm_eps",
        "rope_theta": "rotary_emb_base",
        "partial_rotary_factor": "rotary_pct",
    },
    partial_rotary_factor=0.25,
    read_act=lambda fields: stated_act(fields, "hidden_act", "gelu"),
    read_options=_read_options,
    write_options=_write_options,
    completed=_completed,
    read_layers=full_attention("gpt_neox"),
    write_layers=lambda config: {},
    fused={"self_attn.qkv_proj": _QKV},
    fused_by_head=True,
    tensor_names={
        "gpt_neox": "model",
        "embed_in": "embed_tokens",
        "attention.query_key_value": "self_attn.qkv_proj",
        "attention.dense": "self_attn.o_proj",
        "attention": "self_attn",
        "mlp.dense_h_to_4h": "mlp.up_proj",
        "mlp.dense_4h_to_h": "mlp.down_proj",
        "final_layer_norm": "norm",
        "embed_out": "lm_head",
    },
    ignored={"classifier_dropout": "only matters in training"},
    gguf=GgufForm(
        "gptneox",
        more_biases=True,
        eps_key="layer_norm_epsilon",
        partial_rotary=True,
        fused={"self_attn.qkv_proj": _QKV},
        options=_gguf_options,
    ),
    presets={"pythia-1.4b": Preset(_PYTHIA_1_4B, "https://huggingface.co/EleutherAI/pythia-1.4b")},
)
