"""Which values of an ONNX graph are at which site: by dataflow, where names tell nothing.

The residual stream is the backbone: from the embedding on, each sum of it with something made from it is its next
state, two in each layer. Between two states the matrix products with weights, the caches, the softmax and the gate
show which value is which. A site that is not found is not looked for: a fused operator hides what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from blockexport.compare.audits.dataflow import FUSED, SUMS, Dataflow
from blockexport.models import io_names

if TYPE_CHECKING:
    import onnx

_GATES = ("Sigmoid", "Swish", "QuickGelu", "Gelu", "Silu")
_LOOKUPS = ("Gather", "GatherBlockQuantized")
_ROPE = ("Add", "RotaryEmbedding")
_JOINS = {"Concat": None, "TensorScatter": 2}  # how many of the operands are past and new
_NEAR = 16  # values that may lie between a softmax and its product with the values


@dataclass
class SiteMap:
    """Which value of a graph is at which site.

    Attributes:
        layers: for each layer, the name of the value at each site that was found.
        hidden: sites that cannot be looked for, since the graph has no Attention node to hand them to.
        streams: the value that enters each layer, and after the last the one that leaves it.
        final_norm: the value the head reads.
        parts: of a value in which several sites lie side by side along the last axis, the name that each is given here,
            and where it begins and ends, as shares of that axis.
        nodes: operator and name, in the file, of the node that makes the value at a site of a layer in the call that
            begins at a position; None where the names are our own exporter's, which say the site themselves.
    """

    layers: list[dict[str, str]] = field(default_factory=list)
    hidden: list[frozenset[str]] = field(default_factory=list)
    streams: list[str | None] = field(default_factory=list)
    final_norm: str | None = None
    parts: dict[str, dict[str, tuple[Fraction, Fraction]]] = field(default_factory=dict)
    nodes: Callable[[int, int | None, str], str] | None = None


def find_sites(flow: Dataflow, names: Mapping[str, str], layers: int) -> SiteMap | None:
    """Find the sites; None where the residual stream cannot be followed.

    Args:
        flow: of the graph.
        names: its names of inputs and outputs by role.
        layers: L.
    """
    states = _stream(flow, names, 2 * layers + 1)
    if states is None:
        return None
    found = SiteMap(streams=[*states[::2]])
    for layer in range(layers):
        before, middle, after = states[2 * layer : 2 * layer + 3]
        pasts, presents = (
            [names.get(form.format(layer, kind), "") for kind in ("key", "value")]
            for form in ("past_key_values.{}.{}", "present.{}.{}")
        )
        sites = {
            **_attention_sites(flow, before, middle, pasts, presents),
            "attention_residual": middle,
            **_mlp_sites(flow, middle, after),
            "mlp_residual": after,
        }
        found.layers.append({site: value for site, value in sites.items() if value})
    logits = names.get(io_names.LOGITS, "")
    head = flow.nearest(logits, flow.is_product, states[-1])
    found.final_norm = None if head is None else head.input[0]
    ends = {"embedding": states[0], "final_norm": found.final_norm or "", "head": logits}

    def node(call: int, layer: int | None, site: str) -> str:
        return flow.label(ends.get(site, "") if layer is None else found.layers[layer].get(site, ""))

    found.nodes = node
    return found


def _stream(flow: Dataflow, names: Mapping[str, str], count: int) -> list[str] | None:
    """The states of the residual stream."""
    states = [names[io_names.INPUTS_EMBEDS]] if io_names.INPUTS_EMBEDS in names else _embedding(flow, names)
    while states and len(states) < count:
        following = _next_state(flow, states[-1])
        if following is None:
            return None
        states.append(following)
    return states or None


def _embedding(flow: Dataflow, names: Mapping[str, str]) -> list[str]:
    readers = (node for value in flow.passed_on(names[io_names.INPUT_IDS]) for node in flow.readers.get(value, []))
    return [str(node.output[0]) for node in readers if node.op_type in _LOOKUPS and node.input[0] in flow.fixed][:1]


def _next_state(flow: Dataflow, state: str) -> str | None:
    """The first sum of the stream with something made from it by a product with weights."""
    sums = []
    for name in flow.passed_on(state):
        for node in flow.readers.get(name, []):
            if node.op_type not in ("Add", *SUMS):
                continue
            other = [value for value in node.input[:2] if value != name]
            if other and other[0] not in flow.fixed and flow.nearest(other[0], flow.is_product, state) is not None:
                sums.append(node)
    if not sums:
        return None
    return str(sums[0].output[3] if sums[0].op_type in SUMS else sums[0].output[0])


def _branch(flow: Dataflow, before: str, after: str) -> str:
    """What was added to one state to make the next."""
    same = flow.passed_on(before)
    return next((str(value) for value in flow.maker[after].input[:2] if value not in same), "")


def _products(flow: Dataflow, value: str, *ends: str) -> list[onnx.NodeProto]:
    """Products with weights that a value is made of, nearest first."""
    nodes = {id(flow.maker[name]): flow.maker[name] for name in flow.upstream(value, *ends) if name in flow.maker}
    return [node for node in nodes.values() if flow.is_product(node)]


def _attention_sites(flow: Dataflow, before: str, middle: str, pasts: list[str], presents: list[str]) -> dict[str, str]:
    ends = (before, *(past for past in pasts if past))
    branch = _branch(flow, before, middle)
    products = _products(flow, branch, *ends)
    sites = {"cache_key": presents[0], "cache_value": presents[1]}
    if not products:
        return sites
    last, first = products[0], _innermost(flow, products[1:], ends)
    sites |= {"o_proj": flow.linear(last), "merged": last.input[0]}
    if not first:
        return sites
    sites["input_layernorm"] = first[0].input[0]
    inner = _inside_attention(flow, branch, ends)
    sides = [inner.get("keys") or presents[0], inner.get("values") or presents[1]]
    key, value = (_first_of(flow, first, side, ends) for side in sides)
    rest = [node for node in first if node is not key and node is not value]
    if key is not None and value is not None and key is not value and len(rest) == 1:
        sites |= {"q_proj": flow.linear(rest[0]), "k_proj": flow.linear(key), "v_proj": flow.linear(value)}
        sites |= _heads(flow, inner, sites, pasts, ends)
    return sites


def _inside_attention(flow: Dataflow, branch: str, ends: tuple[str, ...]) -> dict[str, str]:
    """What attention takes for queries, keys and values, by what it does with them, and what it gives."""
    fused = flow.nearest(branch, lambda node: node.op_type in FUSED and len(node.input) > 2, *ends)
    if fused is not None:
        return {"keys": str(fused.input[1]), "values": str(fused.input[2])}
    softmax = flow.nearest(branch, lambda node: node.op_type == "Softmax", *ends)
    if softmax is None:
        return {}
    found: dict[str, str] = {}
    scores = flow.nearest(softmax.input[0], lambda node: node.op_type == "MatMul" and not flow.is_product(node), *ends)
    if scores is not None:
        found |= {"queries": str(scores.input[0]), "keys": str(scores.input[1])}
    front = [str(softmax.output[0])]
    for name in front:
        for node in flow.readers.get(name, []):
            if node.op_type == "MatMul":
                return {**found, "values": str(node.input[1]), "attention": str(node.output[0])}
            if len(front) < _NEAR:
                front += [str(value) for value in node.output if value]
    return found


def _innermost(flow: Dataflow, products: list[onnx.NodeProto], ends: tuple[str, ...]) -> list[onnx.NodeProto]:
    """Those that no other product goes into."""
    return [node for node in products if len(_products(flow, str(node.output[0]), *ends)) == 1]


def _first_of(
    flow: Dataflow, first: list[onnx.NodeProto], present: str, ends: tuple[str, ...]
) -> onnx.NodeProto | None:
    """Which of a layer's first products a cache is made of; none where it is made of several."""
    found = [node for node in _products(flow, present, *ends) if any(node is other for other in first)]
    return found[0] if len(found) == 1 else None


def _heads(
    flow: Dataflow, inner: Mapping[str, str], sites: Mapping[str, str], pasts: list[str], ends: tuple[str, ...]
) -> dict[str, str]:
    """Keys and values as they are entered, queries as attention takes them, and what it gives."""
    found = {"attention": inner["attention"]} if "attention" in inner else {}
    kept = {name for past in pasts for name in flow.passed_on(past)}
    for side, site in (("keys", "k_rope"), ("values", "v_heads")):
        joined = flow.nearest(inner.get(side, ""), lambda node: node.op_type in _JOINS and bool(kept & {*node.input}))
        operands = () if joined is None else joined.input[: _JOINS[joined.op_type]]
        entered = [str(value) for value in operands if value not in kept]
        if len(entered) == 1:
            found[site] = entered[0]
    if "queries" in inner:
        plain = [sites["q_proj"], sites["k_proj"], *ends]
        turned = flow.nearest(inner["queries"], lambda node: node.op_type in _ROPE, *plain)
        found |= {} if turned is None else {"q_rope": str(turned.output[0])}
    for turned_site, plain_site in (("q_rope", "q_heads"), ("k_rope", "k_heads")):
        node = flow.maker.get(found.get(turned_site, ""))
        if node is None or node.op_type not in _ROPE:
            found.pop(turned_site, None)  # what is entered is not seen to be turned here
            continue
        source = _turned(flow, node) if node.op_type == "Add" else str(node.input[0])
        found |= {plain_site: source} if source else {}
    return found


def _turned(flow: Dataflow, rope: onnx.NodeProto) -> str | None:
    """The value that both terms of a spelled-out RoPE are made of."""
    terms = [node for name in rope.input if (node := flow.maker.get(name)) is not None and node.op_type == "Mul"]
    if len(terms) != len(rope.input):
        return None
    for one, other in (terms, terms[::-1]):
        after = {name for value in other.input for name in flow.upstream(str(value))}
        for value in one.input:
            if value in after:
                return str(value)
    return None


def _mlp_sites(flow: Dataflow, middle: str, after: str) -> dict[str, str]:
    branch = _branch(flow, middle, after)
    products = _products(flow, branch, middle)
    if not products:
        return {}
    down, first = products[0], products[1:]
    sites = {"down_proj": flow.linear(down), "activation": str(down.input[0])}
    if first:
        sites["post_attention_layernorm"] = str(first[0].input[0])
    gates = [node for node in first if _is_gate(flow, flow.linear(node))]
    if len(first) == 2 and len(gates) == 1:
        sites["gate_proj"] = flow.linear(gates[0])
        sites["up_proj"] = flow.linear(next(node for node in first if node is not gates[0]))
    return sites


def _is_gate(flow: Dataflow, value: str) -> bool:
    return any(node.op_type in _GATES for name in flow.passed_on(value) for node in flow.readers.get(name, []))
