"""InternLM 3: a Llama that calls its biases `qkv_bias` and `bias`."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields
from blockexport.models.families.family import Options
from blockexport.models.families.llama import LLAMA
from blockexport.models.families.windows import full_attention


def _read_options(fields: RawFields) -> Options:
    """As in transformers, where one flag stands for all of Llama's biases."""
    attention, mlp = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    if attention is not mlp:
        told = f"{fields.told('attention_bias', attention)} and {fields.told('mlp_bias', mlp)}"
        raise fields.error(f"{told}; internlm3 has both biases (qkv_bias and bias) or neither")
    return {}


INTERNLM3 = replace(
    LLAMA,
    model_type="internlm3",
    max_position_embeddings=32_768,
    num_key_value_heads=2,
    head_dim=128,
    rms_norm_eps=1e-5,
    other_keys={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
    read_options=_read_options,
    read_layers=full_attention("internlm3"),
    written_as="llama",
    ignored={"auto_map": "names the modelling code from before transformers had it"},
    gguf=None,
    presets={},
)
