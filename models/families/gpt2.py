"""GPT-2: learned positions, LayerNorm, biases everywhere, and a GELU without a gate.

Its checkpoints have q, k and v in one matrix, and every matrix of a layer as [in, out].
"""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields, check_derived_width, check_no_groups
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.activations import stated_act
from blockexport.models.families.family import Family, GgufForm, Options, Preset
from blockexport.models.families.windows import full_attention


def _read_options(fields: RawFields) -> Options:
    check_derived_width(fields)
    check_no_groups(fields)
    fields.only("scale_attn_weights", (True,), "scores without a scale are not implemented")
    why = "scores that each layer divides by its number are not implemented"
    fields.only("scale_attn_by_inverse_layer_idx", (False,), why)
    return {}


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, norm="layer_norm", norm_bias=True, gated_mlp=False)


_GPT2 = _completed(
    ModelConfig(
        model_type="gpt2",
        vocab_size=50_257,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=12,
        head_dim=64,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        learned_positions=True,
        hidden_act="gelu_pytorch_tanh",
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        bos_token_id=50_256,
        eos_token_ids=(50_256,),
    )
)
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

GPT2 = Family(
    model_type="gpt2",
    class_name="GPT2LMHeadModel",
    max_position_embeddings=1024,
    mlp_ratio=4,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    bos_token_id=50_256,
    eos_token_ids=(50_256,),
    every_bias=True,
    learned_positions=True,
    keys={
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    read_act=lambda fields: stated_act(fields, "activation_function", "gelu_pytorch_tanh"),
    act_key="activation_function",
    read_layers=full_attention("gpt2"),
    write_layers=lambda config: {},
    read_options=_read_options,
    completed=_completed,
    fused={"self_attn.qkv_proj": _QKV},
    inputs_first=True,
    tensor_names={
        "transformer": "model",
        "wte": "embed_tokens",
        "wpe": "embed_positions",
        "h": "layers",
        "ln_1": "input_layernorm",
        "attn.c_attn": "self_attn.qkv_proj",
        "attn.c_proj": "self_attn.o_proj",
        "ln_2": "post_attention_layernorm",
        "mlp.c_fc": "mlp.up_proj",
        "mlp.c_proj": "mlp.down_proj",
        "ln_f": "norm",
    },
    ignored={
        "n_ctx": "an older name of n_positions, which transformers does not read",
        "attn_pdrop": "only matters in training",
        "reorder_and_upcast_attn": "the same scores in float32, in another order",
        **dict.fromkeys(
            (f"summary_{part}" for part in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")),
            "describes a classification head, whose tensors would be refused",
        ),
    },
    gguf=GgufForm(
        "gpt2",
        more_biases=True,
        eps_key="layer_norm_epsilon",
        fused={"self_attn.qkv_proj": _QKV},
        options=lambda fields, layers: {"hidden_act": "gelu_pytorch_tanh"},
    ),
    presets={"gpt2": Preset(_GPT2, "https://huggingface.co/openai-community/gpt2")},
)
