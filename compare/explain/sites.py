"""The places inside a layer where an artifact is compared with eager, in the order of the forward pass.

`eager_sites` gives their values in a block; sites_by_name.py finds them in a graph.
"""

from __future__ import annotations

import torch

from blockexport.compare.audits.sites_by_name import NORMS_AT
from blockexport.models.block.block import Block
from blockexport.models.block.layer_inputs import Step
from blockexport.models.config.model_config import ModelConfig

LABELS = {
    "embedding": "embedding",
    "input_layernorm": "norm before attention",
    "q_proj": "q projection",
    "k_proj": "k projection",
    "v_proj": "v projection",
    "q_heads": "q as heads (after QK-norm where it comes before RoPE)",
    "k_heads": "k as heads (after QK-norm where it comes before RoPE)",
    "v_heads": "v as heads",
    "q_rope": "q after RoPE",
    "k_rope": "k after RoPE",
    "q_norm": "q after QK-norm that follows RoPE",
    "k_norm": "k after QK-norm that follows RoPE",
    "query": "q scaled",
    "cache_key": "cache write of the keys",
    "cache_value": "cache write of the values",
    "mask": "mask",
    "attention": "attention output (scores, softmax, mixing, grouping of heads)",
    "merged": "heads joined",
    "o_proj": "output projection",
    "attention_out_norm": "norm after attention",
    "attention_residual": "residual around attention",
    "post_attention_layernorm": "norm before the MLP",
    "gate_proj": "gate projection",
    "up_proj": "up projection",
    "activation": "activation of the MLP",
    "down_proj": "down projection",
    "mlp_out_norm": "norm after the MLP",
    "mlp_residual": "residual around the MLP",
    "final_norm": "final norm",
    "head": "head",
    "embeddings": "embedding of the text (pooling and normalisation)",
}
"""Every site and what it is, for people."""

MADE_FROM = {
    "query": "q_rope",
    "q_norm": "q_rope",
    "q_rope": "q_heads",
    "attention": "mask",
    "attention_residual": "attention_out_norm",
    "post_attention_layernorm": "attention_residual",
    "mlp_residual": "mlp_out_norm",
    "head": "final_norm",
    "embeddings": "final_norm",
}
"""For a site the one before it, where a graph may have lost that one: when it is missing and this one differs, it is
what is wrong."""

LAYER_SITES = tuple(name for name in LABELS if name not in ("embedding", "final_norm", "head", "embeddings"))


def layer_sites(config: ModelConfig) -> list[str]:
    """Those that a model's layers have: all, but for norms where it has none."""
    absent = [site for site, place in NORMS_AT.items() if place not in config.layer_norms]
    absent += [] if config.gated_mlp else ["gate_proj"]
    absent += [] if config.qk_norm_after_rope else ["q_norm", "k_norm"]
    return [site for site in LAYER_SITES if site not in absent]


def eager_sites(
    block: Block, x_TD: torch.Tensor, step: Step, past_key_BKMH: torch.Tensor, past_value_BKMH: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The value at each site of a layer: `Block.forward`, step by step."""
    attention, positions = block.self_attn, step.position_ids_BS
    norms = (attention.q_norm, attention.k_norm)
    entering_TD = block.normed("attention_in", x_TD)
    sites = {"input_layernorm": entering_TD}
    for name, linear in (("q_proj", attention.q_proj), ("k_proj", attention.k_proj), ("v_proj", attention.v_proj)):
        sites[name] = linear(entering_TD)
    sites["q_heads"] = attention.split(sites["q_proj"], attention.heads, norms[0], positions)
    sites["k_heads"] = attention.split(sites["k_proj"], attention.key_value_heads, norms[1], positions)
    sites["v_heads"] = attention.split(sites["v_proj"], attention.key_value_heads, None, positions)
    sites["q_rope"] = attention.turn(sites["q_heads"], positions, step.cos, step.sin)
    sites["k_rope"] = attention.turn(sites["k_heads"], positions, step.cos, step.sin)
    query, key = (attention.normed_late(sites[f"{x}_rope"], norm) for x, norm in zip("qk", norms, strict=True))
    sites |= {"q_norm": query, "k_norm": key} if attention.norm_late else {}
    sites["query"] = attention.scaled_queries(query, positions)
    sites["cache_key"] = attention.write(past_key_BKMH, key, step)
    sites["cache_value"] = attention.write(past_value_BKMH, sites["v_heads"], step)
    sites["mask"] = step.mask_B1SM
    merged_TE = attention.attend(sites["query"], sites["cache_key"], sites["cache_value"], step.mask_B1SM)
    batch, length = positions.shape
    sites["attention"] = merged_TE.view(batch, length, attention.heads, attention.head_dim).transpose(1, 2)
    sites["merged"] = merged_TE
    sites["o_proj"] = attention.o_proj(merged_TE)
    sites["attention_out_norm"] = block.normed("attention_out", sites["o_proj"])
    sites["attention_residual"] = block.add_attention(x_TD, sites["o_proj"])
    sites["post_attention_layernorm"] = block.mlp_input(x_TD, sites["attention_residual"])
    if block.mlp.gate_proj is not None:
        sites["gate_proj"] = block.mlp.gate_proj(sites["post_attention_layernorm"])
    sites["up_proj"] = block.mlp.up_proj(sites["post_attention_layernorm"])
    sites["activation"] = block.mlp.activated(sites.get("gate_proj"), sites["up_proj"])
    sites["down_proj"] = block.mlp.down_proj(sites["activation"])
    sites["mlp_out_norm"] = block.normed("mlp_out", sites["down_proj"])
    sites["mlp_residual"] = block.add_mlp(sites["attention_residual"], sites["down_proj"])
    return {site: value for site, value in sites.items() if site not in NORMS_AT or NORMS_AT[site] in block.norms}
