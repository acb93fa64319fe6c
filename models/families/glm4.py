"""GLM-4-0414: GLM with norms before and after each sublayer."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import GgufForm
from blockexport.models.families.glm import GLM
from blockexport.models.families.windows import full_attention


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(GLM.completed(config), norm_placement="both")


GLM4 = replace(
    GLM,
    model_type="glm4",
    class_name="Glm4ForCausalLM",
    # Its post_attention_layernorm stands before the MLP, so it comes first.
    tensor_names={
        "post_attention_layernorm": "pre_feedforward_layernorm",
        "post_self_attn_layernorm": "post_attention_layernorm",
        "post_mlp_layernorm": "post_feedforward_layernorm",
    },
    read_layers=full_attention("glm4"),
    completed=_completed,
    gguf=GgufForm("glm4", fused={"mlp.up_proj": GLM.fused["mlp.gate_up_proj"]}, partial_rotary=True),
)
