"""HyperCLOVA X SEED: Granite's multipliers, and norms before and after each sublayer."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, Options
from blockexport.models.families.windows import full_attention


def _read_options(fields: RawFields) -> Options:
    """The logits are multiplied by `logits_scaling`, where Granite's are divided by it."""
    fields.only("use_post_norm", (True,), "hyperclovax without norms after the sublayers is not implemented")
    scaled = fields.has("attention_multiplier") and fields.get("attention_multiplier") is not None
    fields.used.add("attention_multiplier")
    return {
        "embedding_multiplier": fields.number("embedding_multiplier", 1.0),
        "residual_multiplier": fields.number("residual_multiplier", 1.0),
        "query_scale": fields.number("attention_multiplier") if scaled else None,
        "logits_multiplier": fields.number("logits_scaling", 1.0),
    }


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, norm_placement="both")


HYPERCLOVAX = Family(
    model_type="hyperclovax",
    class_name="HyperCLOVAXForCausalLM",
    max_position_embeddings=2048,
    bos_token_id=1,
    eos_token_ids=(2,),
    bias_keys=("attention_bias", "mlp_bias"),
    # Its post_attention_layernorm stands before the MLP, so it comes first.
    tensor_names={
        "post_attention_layernorm": "pre_feedforward_layernorm",
        "post_norm1": "post_attention_layernorm",
        "post_norm2": "post_feedforward_layernorm",
    },
    read_layers=full_attention("hyperclovax"),
    write_layers=lambda config: {},
    read_options=_read_options,
    completed=_completed,
)
