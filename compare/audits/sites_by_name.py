"""Which values of an ONNX graph are at which site: by the names that the exporter gives, and where a name is gone, by
dataflow.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import accumulate

import onnx_ir as ir

from blockexport.compare.audits.dataflow import Dataflow
from blockexport.compare.audits.sites_by_flow import SiteMap, find_sites
from blockexport.models import io_names
from blockexport.models.config.model_config import LAYER_NORMS, NormPlace, NormPlacement


def _norm(place: str) -> tuple[str, ...]:
    """What the output of a norm is called, of each kind."""
    return (f"{place}.rms_norm", f"{place}.layer_norm.narrowed", f"{place}.layer_norm")


_NAMES: dict[str, tuple[str, ...]] = {
    "q_proj": ("self_attn.q_proj.linear",),
    "k_proj": ("self_attn.k_proj.linear",),
    "v_proj": ("self_attn.v_proj.linear",),
    "q_heads": ("self_attn.q_proj.heads", "self_attn.transpose"),
    "k_heads": ("self_attn.k_proj.heads", "self_attn.transpose_1"),
    "q_rope": ("self_attn.rotary_embedding.narrowed", "self_attn.rotary_embedding"),
    "k_rope": ("self_attn.rotary_embedding.narrowed_1", "self_attn.rotary_embedding_1"),
    "attention": ("self_attn.scaled_dot_product_attention", "self_attn.capped_attention"),
    "merged": ("self_attn.reshape", "self_attn.view_3"),
    "o_proj": ("self_attn.o_proj.linear",),
    "attention_residual": ("add",),
    "gate_proj": ("mlp.gate_proj.linear",),
    "up_proj": ("mlp.up_proj.linear",),
    "activation": ("mlp.mul", "mlp.gelu"),
    "down_proj": ("mlp.down_proj.linear",),
    "mlp_residual": ("add_1",),
}


NORMS_AT: dict[str, NormPlace] = {
    "input_layernorm": "attention_in",
    "attention_out_norm": "attention_out",
    "post_attention_layernorm": "mlp_in",
    "mlp_out_norm": "mlp_out",
}
"""Sites that are the output of a norm around a sublayer, and where that stands."""


def map_sites(graph: ir.Graph, num_hidden_layers: int) -> SiteMap:
    """Find the sites of a decoder's graph. Sites that are not found are absent."""
    flow = Dataflow([ir.serde.serialize_node(node) for node in graph], graph.initializers)
    own = {str(value.name): str(value.name) for value in (*graph.inputs, *graph.outputs)}
    by_flow = find_sites(flow, own, num_hidden_layers)
    found = SiteMap()
    for layer in range(num_hidden_layers):
        sites = {**({} if by_flow is None else by_flow.layers[layer]), **_sites_of_layer(flow, layer)}
        _side_by_side(flow, graph, layer, sites, found)
        found.layers.append(sites)
        attends = flow.flows_into(f"present.{layer}.key", "Attention") is not None
        found.hidden.append(frozenset(() if attends else ("query", "mask")))
        found.streams.append(_entering(flow, sites))
    found.final_norm = _final_norm(flow, own)
    leaving = found.layers[-1].get("mlp_residual") or _first_input(flow, found.final_norm)
    found.streams.append(leaving)
    for sites, stream in zip(found.layers, found.streams[1:], strict=True):
        if stream is not None:
            # Whatever goes on to the next layer stands where the stream should be.
            sites["mlp_residual"] = stream
    return found


def _sites_of_layer(flow: Dataflow, layer: int) -> dict[str, str]:
    """By name, but for what enters the cache and the attention: that is known for certain by what it is for."""
    prefix = f"model.layers.{layer}."

    def first_there(names: Iterable[str]) -> list[str]:
        return [prefix + name for name in names if prefix + name in flow.maker]

    placement: NormPlacement = "post" if first_there(_norm(LAYER_NORMS["post"]["mlp_out"])) else "pre"
    placement = "both" if first_there(_norm(LAYER_NORMS["both"]["mlp_in"])) else placement
    norms = {site: LAYER_NORMS[placement].get(place) for site, place in NORMS_AT.items()}
    names = {**_NAMES, **{site: _norm(name) for site, name in norms.items() if name}}
    there = {site: first_there(spelled) for site, spelled in names.items()}
    named = {site: values[0] for site, values in there.items() if values}
    for x in "qk":  # QK-norm before RoPE is a part of how heads are made
        late = next(iter(first_there(_norm(f"self_attn.{x}_norm"))), None)
        turned = named.get(f"{x}_rope")
        named |= {f"{x}_norm": late} if late and turned and _first_input(flow, late) == turned else {}
    found, written = dict[str, str](), dict[str, str]()
    for kind, site, update in (("key", "cache_key", "k_rope"), ("value", "cache_value", "v_heads")):
        present = f"present.{layer}.{kind}"
        found |= {site: present} if present in flow.maker else {}
        # Whatever it is given as: outputs of two layers may have each other's names.
        scatter = flow.flows_into(named.get(f"{kind[0]}_proj", ""), "TensorScatter")
        scatter = scatter or flow.nearest(present, lambda node: node.op_type == "TensorScatter")
        found |= {} if scatter is None else {_entered(flow, scatter.input[1], update): scatter.input[1]}
        written[kind] = present if scatter is None else scatter.output[0]
    attention = flow.flows_into(written["key"], "Attention")
    if attention is not None:
        found["attention"] = attention.output[0]
        found |= {site: attention.input[at] for site, at in (("query", 0), ("mask", 3)) if at < len(attention.input)}
    return {site: value for site, value in {**found, **named}.items() if value}


def _entered(flow: Dataflow, value: str, site: str) -> str:
    """The site of what is written into a cache: keys may be normed after RoPE."""
    node = flow.maker.get(value)
    return "k_norm" if site == "k_rope" and node is not None and node.op_type.endswith("Normalization") else site


def _side_by_side(flow: Dataflow, graph: ir.Graph, layer: int, sites: dict[str, str], found: SiteMap) -> None:
    """q, k and v of one product, which part later, as heads: each is where what it is for is taken from."""
    whole = f"model.layers.{layer}.self_attn.qkv_proj.linear"
    split = flow.flows_into(whole, "Split") if whole in flow.maker else None
    sizes = graph.initializers.get(split.input[1]) if split is not None else None
    if split is None or sizes is None or sizes.const_value is None:
        return
    ends = list(accumulate(map(int, sizes.const_value.numpy()), initial=0))
    for site, use in (("q_proj", "query"), ("k_proj", "k_rope"), ("v_proj", "v_heads")):
        made_of = flow.upstream(sites.get(use, ""))
        for output, start, end in zip(split.output, ends, ends[1:], strict=False):
            if output in made_of:
                sites[site] = f"{whole} ({site})"
                found.parts.setdefault(whole, {})[sites[site]] = (Fraction(start, ends[-1]), Fraction(end, ends[-1]))


def _entering(flow: Dataflow, sites: dict[str, str]) -> str | None:
    """The stream that enters a layer: what is added to attention's output, or what its first norm reads."""
    residual, branch = flow.maker.get(sites.get("attention_residual", "")), sites.get("o_proj", "")
    if residual is not None and residual.op_type == "Add":
        others = [value for value in residual.input if branch not in flow.upstream(value)]
        if len(others) == 1:
            return str(others[0])
    return _first_input(flow, sites.get("input_layernorm"))


def _first_input(flow: Dataflow, value: str | None) -> str | None:
    """The first input of the node that makes a value."""
    node = flow.maker.get(value or "")
    return None if node is None or not node.input else str(node.input[0])


def _final_norm(flow: Dataflow, own: dict[str, str]) -> str | None:
    """What the head reads: the first input of the last matrix product, or a headless stack's output. Of what is pooled
    it is known by its name alone."""
    named = next((name for name in _norm("model.norm") if name in flow.maker), None)
    if named is not None:
        return named
    if io_names.HIDDEN_STATES in own:
        return io_names.HIDDEN_STATES
    if io_names.EMBEDDINGS in own:
        return None
    head = flow.nearest(io_names.LOGITS, flow.is_product)
    return None if head is None else str(head.input[0])
