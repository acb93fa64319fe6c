"""Phi-3 and Phi-4: a Mistral whose q, k and v are one matrix, and gate and up another. They are taken apart on load."""

from __future__ import annotations

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, GgufForm, Preset
from blockexport.models.families.windows import window_everywhere

_PHI_4 = ModelConfig(
    model_type="phi3",
    vocab_size=100_352,
    hidden_size=5120,
    intermediate_size=17_920,
    num_hidden_layers=40,
    num_attention_heads=40,
    num_key_value_heads=10,
    head_dim=128,
    max_position_embeddings=16_384,
    rms_norm_eps=1e-5,
    rope_theta=250_000.0,
    dtype="bfloat16",
    bos_token_id=100_257,
    eos_token_ids=(100_265,),
)

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")

PHI3 = Family(
    model_type="phi3",
    class_name="Phi3ForCausalLM",
    max_position_embeddings=4096,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_ids=(32_000,),
    read_layers=window_everywhere("phi3"),
    write_layers=lambda config: {},
    original_max_position_embeddings=4096,
    partial_rotary_factor=1.0,
    fused={"self_attn.qkv_proj": _QKV, "mlp.gate_up_proj": _GATE_UP},
    written_as="mistral",
    ignored={
        "original_max_position_embeddings": "the length before scaling by LongRoPE, which reads it",
        "embd_pdrop": "only matters in training",
        "auto_map": "names the modelling code from before transformers had it",
    },
    gguf=GgufForm("phi3", fused={"self_attn.qkv_proj": _QKV, "mlp.up_proj": _GATE_UP}),
    presets={"phi-4": Preset(_PHI_4, "https://huggingface.co/microsoft/phi-4")},
)
