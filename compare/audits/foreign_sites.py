"""Which values of another tool's graph are at which site: by dataflow, since names tell nothing there.

The residual stream is the backbone: from the embedding on, each sum of it with something made from it is its next
state, two in each layer. Between two states the matrix products with weights, the caches, the softmax and the gate
show which value is which. A site that is not found is not looked for: a fused operator hides what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx

from blockexport.models import io_names

_PASSING = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten")
_PRODUCTS = ("MatMul", "Gemm", "MatMulNBits", "FusedMatMul")
_SUMS = ("SkipSimplifiedLayerNormalization", "SkipLayerNormalization")  # output 3 is the sum, output 0 its norm
_GATES = ("Sigmoid", "Swish", "QuickGelu", "Gelu", "Silu")
_LOOKUPS = ("Gather", "GatherBlockQuantized")
_ROPE = ("Add", "RotaryEmbedding")
_NEAR = 16  # values that may lie between a softmax and its product with the values
_FUSED = {"GroupQueryAttention": {1: (1, 3), 2: (2, 4)}, "Attention": {1: (1, 4), 2: (2, 5)}}
"""Which inputs an attention operator's cache outputs are made of."""


@dataclass
class ForeignSites:
    """Values by site.

    Attributes:
        layers: for each layer, the value at each site that was found.
        streams: what enters each layer, and after the last what leaves it.
        final_norm: what the head reads.
        logits: the output.
        makers: operator and name of the node that makes a value.
    """

    layers: list[dict[str, str]] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    final_norm: str | None = None
    logits: str = ""
    makers: dict[str, str] = field(default_factory=dict)


def find_sites(model: onnx.ModelProto, names: Mapping[str, str], layers: int) -> ForeignSites | None:
    """Find the sites; None where the residual stream cannot be followed.

    Args:
        model: the graph. Sums inside fused norms get a name, so that they can be watched.
        names: the file's names of inputs and outputs by role.
        layers: L.
    """
    flow = _Flow(model.graph)
    states = _stream(flow, names[io_names.INPUT_IDS], 2 * layers + 1)
    if states is None:
        return None
    found = ForeignSites(streams=states[::2])
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
    head = flow.nearest(names[io_names.LOGITS], flow.is_product, states[-1])
    found.final_norm = None if head is None else head.input[0]
    found.logits = names[io_names.LOGITS]
    found.makers = {value: flow.label(value) for value in flow.maker}
    return found


class _Flow:
    """A graph's values, who makes and who reads them, and which depend on no input."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.maker: dict[str, onnx.NodeProto] = {}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        self.fixed = {tensor.name for tensor in graph.initializer}
        for at, node in enumerate(graph.node):
            if node.op_type in _SUMS and len(node.output) < 4:
                node.output.extend([""] * (3 - len(node.output)))
                node.output.append(f"sum of {node.name or at}")
            if all(not name or name in self.fixed for name in node.input):
                self.fixed.update(node.output)
            for name in node.output:
                if name:
                    self.maker[name] = node
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(node)

    def label(self, value: str) -> str:
        """Operator and name of a value's node."""
        node = self.maker[value]
        return f"{node.op_type} {node.name or value}"

    def made_from(self, value: str) -> Iterator[str]:
        """What a value is made from in one step, weights and shapes aside."""
        node = self.maker.get(value)
        if node is None or node.op_type in ("Shape", "Size"):
            return
        places = _FUSED.get(node.op_type, {}).get(list(node.output).index(value), range(len(node.input)))
        for place in places:
            if place < len(node.input) and node.input[place] and node.input[place] not in self.fixed:
                yield node.input[place]

    def upstream(self, value: str, *ends: str) -> list[str]:
        """A value and what it is made from, nearest first, up to and without `ends` and whatever their nodes make."""
        stop = {name for end in ends for name in (self.maker[end].output if end in self.maker else [end])}
        stop |= set(ends)
        queue, seen = [value], {value}
        for name in queue:
            for source in self.made_from(name):
                if source not in seen and source not in stop:
                    seen.add(source)
                    queue.append(source)
        return queue

    def nearest(self, value: str, wanted: Callable[[onnx.NodeProto], bool], *ends: str) -> onnx.NodeProto | None:
        """The nearest node upstream, the one that makes the value included, that `wanted` accepts."""
        nodes = (self.maker[name] for name in self.upstream(value, *ends) if name in self.maker)
        return next((node for node in nodes if wanted(node)), None)

    def is_product(self, node: onnx.NodeProto) -> bool:
        """A matrix product with weights."""
        return node.op_type in _PRODUCTS and node.input[0] not in self.fixed and node.input[1] in self.fixed

    def linear(self, node: onnx.NodeProto) -> str:
        """What a product gives, its bias added where that is a node of its own."""
        value = str(node.output[0])
        for reader in self.readers.get(value, []):
            if reader.op_type == "Add" and any(name in self.fixed for name in reader.input):
                return str(reader.output[0])
        return value

    def passed_on(self, value: str) -> list[str]:
        """A value under each name it has after nodes that only move or cast it."""
        found = [value]
        for name in found:
            found += [node.output[0] for node in self.readers.get(name, []) if node.op_type in _PASSING]
        return found


def _stream(flow: _Flow, input_ids: str, count: int) -> list[str] | None:
    """The states of the residual stream."""
    readers = (node for value in flow.passed_on(input_ids) for node in flow.readers.get(value, []))
    states = [str(node.output[0]) for node in readers if node.op_type in _LOOKUPS and node.input[0] in flow.fixed][:1]
    while states and len(states) < count:
        following = _next_state(flow, states[-1])
        if following is None:
            return None
        states.append(following)
    return states or None


def _next_state(flow: _Flow, state: str) -> str | None:
    """The first sum of the stream with something made from it by a product with weights."""
    sums = []
    for name in flow.passed_on(state):
        for node in flow.readers.get(name, []):
            if node.op_type not in ("Add", *_SUMS):
                continue
            other = [value for value in node.input[:2] if value != name]
            if other and other[0] not in flow.fixed and flow.nearest(other[0], flow.is_product, state) is not None:
                sums.append(node)
    if not sums:
        return None
    return str(sums[0].output[3] if sums[0].op_type in _SUMS else sums[0].output[0])


def _branch(flow: _Flow, before: str, after: str) -> str:
    """What was added to one state to make the next."""
    same = flow.passed_on(before)
    return next(str(value) for value in flow.maker[after].input[:2] if value not in same)


def _products(flow: _Flow, value: str, *ends: str) -> list[onnx.NodeProto]:
    """Products with weights that a value is made of, nearest first."""
    nodes = {id(flow.maker[name]): flow.maker[name] for name in flow.upstream(value, *ends) if name in flow.maker}
    return [node for node in nodes.values() if flow.is_product(node)]


def _attention_sites(flow: _Flow, before: str, middle: str, pasts: list[str], presents: list[str]) -> dict[str, str]:
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


def _inside_attention(flow: _Flow, branch: str, ends: tuple[str, ...]) -> dict[str, str]:
    """What attention takes for queries, keys and values, by what it does with them, and what it gives."""
    fused = flow.nearest(branch, lambda node: node.op_type in _FUSED and len(node.input) > 2, *ends)
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


def _innermost(flow: _Flow, products: list[onnx.NodeProto], ends: tuple[str, ...]) -> list[onnx.NodeProto]:
    """Those that no other product goes into."""
    return [node for node in products if len(_products(flow, str(node.output[0]), *ends)) == 1]


def _first_of(flow: _Flow, first: list[onnx.NodeProto], present: str, ends: tuple[str, ...]) -> onnx.NodeProto | None:
    """Which of a layer's first products a cache is made of; none where it is made of several."""
    found = [node for node in _products(flow, present, *ends) if any(node is other for other in first)]
    return found[0] if len(found) == 1 else None


def _heads(
    flow: _Flow, inner: Mapping[str, str], sites: Mapping[str, str], pasts: list[str], ends: tuple[str, ...]
) -> dict[str, str]:
    """Keys and values as they are entered, queries as attention takes them, and what it gives."""
    found = {"attention": inner["attention"]} if "attention" in inner else {}
    kept = {name for past in pasts for name in flow.passed_on(past)}
    for side, site in (("keys", "k_rope"), ("values", "v_heads")):
        joined = flow.nearest(inner.get(side, ""), lambda node: node.op_type == "Concat" and bool(kept & {*node.input}))
        entered = [] if joined is None else [str(value) for value in joined.input if value not in kept]
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


def _turned(flow: _Flow, rope: onnx.NodeProto) -> str | None:
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


def _mlp_sites(flow: _Flow, middle: str, after: str) -> dict[str, str]:
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


def _is_gate(flow: _Flow, value: str) -> bool:
    return any(node.op_type in _GATES for name in flow.passed_on(value) for node in flow.readers.get(name, []))
