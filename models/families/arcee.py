"""Arcee (AFM): a Llama whose MLP is a squared ReLU without a gate."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.activations import stated_act
from blockexport.models.families.family import Family, GgufForm
from blockexport.models.families.windows import full_attention


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, gated_mlp=False)


ARCEE = Family(
    model_type="arcee",
    class_name="ArceeForCausalLM",
    max_position_embeddings=4096,
    rms_norm_eps=1e-5,
    bos_token_id=128_000,
    eos_token_ids=(128_001,),
    bias_keys=("attention_bias", "mlp_bias"),
    read_act=lambda fields: stated_act(fields, "hidden_act", "relu2"),
    read_layers=full_attention("arcee"),
    write_layers=lambda config: {},
    completed=_completed,
    gguf=GgufForm(
        "arcee", neighbour_pairs=True, rope_factors=True, options=lambda fields, layers: {"hidden_act": "relu2"}
    ),
)
