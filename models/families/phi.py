"""Phi-1, Phi-1.5 and Phi-2: attention and MLP side by side after one LayerNorm, biases everywhere, and in the head."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields, check_derived_width
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.activations import stated_act
from blockexport.models.families.family import Family, GgufForm, Options, Preset
from blockexport.models.families.windows import full_attention


def _read_options(fields: RawFields) -> Options:
    check_derived_width(fields)
    return {"qk_norm": fields.flag("qk_layernorm", False)}


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(
        config, norm="layer_norm", norm_bias=True, gated_mlp=False, residual="parallel_one_norm", head_bias=True
    )


_PHI_2 = _completed(
    ModelConfig(
        model_type="phi",
        vocab_size=51_200,
        hidden_size=2560,
        intermediate_size=10_240,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        head_dim=80,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        rotary_dim=32,
        hidden_act="gelu_pytorch_tanh",
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        dtype="float16",
        bos_token_id=50_256,
        eos_token_ids=(50_256,),
    )
)

PHI = Family(
    model_type="phi",
    class_name="PhiForCausalLM",
    max_position_embeddings=2048,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_ids=(2,),
    every_bias=True,
    keys={"rms_norm_eps": "layer_norm_eps"},
    partial_rotary_factor=0.5,
    read_act=lambda fields: stated_act(fields, "hidden_act", "gelu_pytorch_tanh"),
    read_options=_read_options,
    completed=_completed,
    read_layers=full_attention("phi"),
    write_layers=lambda config: {},
    tensor_names={
        "self_attn.dense": "self_attn.o_proj",
        "self_attn.q_layernorm": "self_attn.q_norm",
        "self_attn.k_layernorm": "self_attn.k_norm",
        "mlp.fc1": "mlp.up_proj",
        "mlp.fc2": "mlp.down_proj",
        "final_layernorm": "norm",
    },
    ignored={
        "embd_pdrop": "only matters in training",
        "auto_map": "names the modelling code from before transformers had it",
    },
    gguf=GgufForm(
        "phi2",
        more_biases=True,
        eps_key="layer_norm_epsilon",
        partial_rotary=True,
        fused={"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
        options=lambda fields, layers: {"hidden_act": "gelu_pytorch_tanh"},
    ),
    presets={"phi-2": Preset(_PHI_2, "https://huggingface.co/microsoft/phi-2")},
)
