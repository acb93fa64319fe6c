"""Jais 2: a Llama with LayerNorm, biases everywhere, and a squared ReLU without a gate."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.activations import stated_act
from blockexport.models.families.family import Family, GgufForm
from blockexport.models.families.windows import full_attention


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, norm="layer_norm", norm_bias=True, gated_mlp=False)


JAIS2 = Family(
    model_type="jais2",
    class_name="Jais2ForCausalLM",
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    bos_token_id=0,
    eos_token_ids=(150_024,),
    bias_keys=("attention_bias", "mlp_bias"),
    bias_default=True,
    keys={"rms_norm_eps": "layer_norm_eps"},
    read_act=lambda fields: stated_act(fields, "hidden_act", "relu2"),
    read_layers=full_attention("jais2"),
    write_layers=lambda config: {},
    completed=_completed,
    gguf=GgufForm(
        "jais2",
        more_biases=True,
        eps_key="layer_norm_epsilon",
        options=lambda fields, layers: {"hidden_act": "relu2"},
    ),
)
