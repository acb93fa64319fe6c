"""Granite 4, the dense models: Granite under the name of its hybrids, which are refused."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields
from blockexport.models.families.family import LayerOptions, Options
from blockexport.models.families.granite import GRANITE
from blockexport.models.strict_json import shown

_DENSE = ("attention", "full_attention")


def _read_layers(fields: RawFields, layers: int) -> LayerOptions:
    """Only attention in every layer, and RoPE in all of them or in none."""
    for key in ("layer_types", "layers_block_type"):
        stated = fields.get(key)
        if stated is not None and (not isinstance(stated, list) or len(stated) != layers):
            raise fields.error(f"{key} is {shown(stated)}; it must be a list of {layers} types")
    types = fields.get("layer_types") or fields.get("layers_block_type") or ["linear_attention"]
    if others := sorted({str(kind) for kind in types} - set(_DENSE)):
        raise fields.error(
            f"layer_types has {', '.join(others)}, where nothing is stated linear_attention: Granite's hybrids of "
            "attention and Mamba (state spaces) are not implemented, only its models with attention in every layer are"
        )
    experts = fields.integer("num_local_experts", 8, minimum=0)
    if experts:
        raise fields.error(f"{fields.told('num_local_experts', experts)}: mixtures of experts are not implemented")
    fields.only("position_embedding_type", (None, "rope", "nope"), "only RoPE and no positions at all are implemented")
    turned = fields.get("position_embedding_type") == "rope"
    return LayerOptions(layers_without_rope=() if turned else tuple(range(layers)))


def _read_options(fields: RawFields) -> Options:
    fields.only("normalization_function", ("rmsnorm",), "granitemoehybrid has RMSNorm")
    return {**GRANITE.read_options(fields), "intermediate_size": fields.integer("shared_intermediate_size", 1024)}


_MAMBA = "n_heads n_groups d_state d_head d_conv expand chunk_size conv_bias proj_bias"

GRANITE_MOE_HYBRID = replace(
    GRANITE,
    model_type="granitemoehybrid",
    class_name="GraniteMoeHybridForCausalLM",
    mlp_ratio=1,  # `intermediate_size` is that of experts; shared_intermediate_size takes its place
    bias_keys=("attention_bias",),
    read_layers=_read_layers,
    read_options=_read_options,
    fused={"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")},
    tensor_names={"shared_mlp.input_linear": "mlp.gate_up_proj", "shared_mlp.output_linear": "mlp.down_proj"},
    written_as="granite",
    ignored={
        **{f"mamba_{key}": "of layers that the dense models do not have" for key in _MAMBA.split()},
        "time_step_limit": "of layers that the dense models do not have",
        "num_experts_per_tok": "of experts, which the dense models do not have",
        "output_router_logits": "of experts, which the dense models do not have",
        "router_aux_loss_coef": "only matters in training",
        "init_method": "only matters in training",
    },
    gguf=None,
    presets={},
)
