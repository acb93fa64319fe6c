"""EXAONE 3 and 3.5: a Llama whose files have names of their own for keys and tensors."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.families.family import GgufForm
from blockexport.models.families.llama import LLAMA
from blockexport.models.families.windows import full_attention

EXAONE = replace(
    LLAMA,
    model_type="exaone",
    max_position_embeddings=4096,
    num_key_value_heads=8,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
    eos_token_ids=(361,),
    other_keys={
        "num_layers": "num_hidden_layers",
        "layer_norm_epsilon": "rms_norm_eps",
        "activation_function": "hidden_act",
    },
    tensor_names={
        "wte": "embed_tokens",
        "h": "layers",
        "ln_f": "norm",
        "ln_1": "input_layernorm",
        "ln_2": "post_attention_layernorm",
        "attn.attention": "self_attn",
        "self_attn.out_proj": "self_attn.o_proj",
        "mlp.c_fc_0": "mlp.gate_proj",
        "mlp.c_fc_1": "mlp.up_proj",
        "mlp.c_proj": "mlp.down_proj",
    },
    read_layers=full_attention("exaone"),
    written_as="llama",
    ignored={"auto_map": "names the modelling code from before transformers had it"},
    gguf=GgufForm("exaone", rope_factors=True),
    presets={},
)
