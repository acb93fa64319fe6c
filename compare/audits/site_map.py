"""Which values of an ONNX graph are at which site: by the names that the exporter gives, and where a name is gone, by
what the value is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from blockexport.models import io_names

_NAMES: dict[str, tuple[str, ...]] = {
    "input_layernorm": ("input_layernorm.rms_norm",),
    "q_proj": ("self_attn.q_proj.linear",),
    "k_proj": ("self_attn.k_proj.linear",),
    "v_proj": ("self_attn.v_proj.linear",),
    "q_heads": ("self_attn.transpose",),
    "k_heads": ("self_attn.transpose_1",),
    "q_rope": ("self_attn.rotary_embedding.narrowed", "self_attn.rotary_embedding"),
    "k_rope": ("self_attn.rotary_embedding.narrowed_1", "self_attn.rotary_embedding_1"),
    "attention": ("self_attn.scaled_dot_product_attention",),
    "merged": ("self_attn.reshape", "self_attn.view_3"),
    "o_proj": ("self_attn.o_proj.linear",),
    "attention_residual": ("add",),
    "post_attention_layernorm": ("post_attention_layernorm.rms_norm",),
    "gate_proj": ("mlp.gate_proj.linear",),
    "up_proj": ("mlp.up_proj.linear",),
    "activation": ("mlp.mul",),
    "down_proj": ("mlp.down_proj.linear",),
    "mlp_residual": ("add_1",),
}
_MATRIX = ("Gemm", "MatMul")


@dataclass
class SiteMap:
    """Which value of a graph is at which site.

    Attributes:
        layers: for each layer, the name of the value at each site that was found.
        hidden: sites that cannot be looked for, since the graph has no Attention node to hand them to.
        streams: the value that enters each layer, and after the last the one that leaves it.
        final_norm: the value the head reads.
        nodes: operator and name, in the file, of the node that makes the value at a site of a layer in the call that
            begins at a position; None where the names are our own exporter's, which say the site themselves.
    """

    layers: list[dict[str, str]] = field(default_factory=list)
    hidden: list[frozenset[str]] = field(default_factory=list)
    streams: list[str | None] = field(default_factory=list)
    final_norm: str | None = None
    nodes: Callable[[int, int | None, str], str] | None = None


def map_sites(graph: ir.Graph, num_hidden_layers: int) -> SiteMap:
    """Find the sites of a decoder's graph. Sites that are not found are absent."""
    finder = _Finder(graph)
    found = SiteMap()
    for layer in range(num_hidden_layers):
        sites = finder.layer(layer)
        found.layers.append(sites)
        found.hidden.append(finder.hidden(layer))
        found.streams.append(finder.stream(layer, sites))
    last = found.layers[-1].get("mlp_residual")
    found.final_norm = finder.final_norm()
    found.streams.append(last or finder.input_of(found.final_norm))
    for sites, leaving in zip(found.layers, found.streams[1:], strict=True):
        if leaving is not None:
            # Whatever goes on to the next layer stands where the stream should be.
            sites["mlp_residual"] = leaving
    return found


class _Finder:
    def __init__(self, graph: ir.Graph) -> None:
        self.values: dict[str, ir.Value] = {}
        for node in graph:
            self.values |= {str(value.name): value for value in node.outputs if value.name}
        self.outputs = {str(value.name): value for value in graph.outputs}

    def layer(self, layer: int) -> dict[str, str]:
        """Site to value name, by name where the name is there and by role elsewhere."""
        prefix = f"model.layers.{layer}."
        named = {
            site: prefix + name
            for site, names in _NAMES.items()
            for name in reversed(names)
            if prefix + name in self.values
        }
        roles = {site: str(value.name) for site, value in self._roles(layer, named).items() if value is not None}
        # What enters the cache and the attention is known by role for certain: those win.
        certain = ("cache_key", "cache_value", "v_heads", "query", "mask")
        return {**roles, **named, **{site: roles[site] for site in certain if site in roles}}

    def _roles(self, layer: int, named: dict[str, str]) -> dict[str, ir.Value | None]:
        found: dict[str, ir.Value | None] = {}
        written: dict[str, ir.Value | None] = {}
        for kind, site, update in (("key", "cache_key", "k_rope"), ("value", "cache_value", "v_heads")):
            present = self.values.get(f"present.{layer}.{kind}")
            found[site] = present
            # Whatever it is given as: outputs of two layers may have each other's names.
            projected = self.values.get(named.get(f"{kind[0]}_proj", ""))
            scatter = _descendant(projected, ("TensorScatter",)) or _ancestor(present, ("TensorScatter",))
            found[update] = scatter.inputs[1] if scatter is not None else None
            written[kind] = present if scatter is None else scatter.outputs[0]
        attention = _descendant(written["key"], ("Attention",))
        if attention is not None:
            found["attention"] = attention.outputs[0]
            found["query"], found["mask"] = (
                attention.inputs[0],
                attention.inputs[3] if len(attention.inputs) > 3 else None,
            )
        for site, source in (("q_proj", found.get("query")), ("k_proj", found["k_rope"]), ("v_proj", found["v_heads"])):
            found[site] = _output(_ancestor(source, _MATRIX))
        found["input_layernorm"] = _output(_ancestor(_first_input(found["q_proj"]), ("RMSNormalization",)))
        mixed = found.get("attention") or self.values.get(named.get("attention", ""))
        found["o_proj"] = _output(_descendant(mixed, _MATRIX))
        found["merged"] = _first_input(found["o_proj"])
        found["attention_residual"] = _residual(found["o_proj"])
        return {**found, **_mlp_roles(found["attention_residual"])}

    def hidden(self, layer: int) -> frozenset[str]:
        """What goes into an Attention node, where there is none."""
        present = self.values.get(f"present.{layer}.key")
        return frozenset() if _descendant(present, ("Attention",)) else frozenset(("query", "mask"))

    def stream(self, layer: int, sites: dict[str, str]) -> str | None:
        """What enters a layer: what is added to attention's output, or what its first norm reads."""
        residual = self.values.get(sites.get("attention_residual", ""))
        node = None if residual is None else residual.producer()
        others = [value.name for value in node.inputs if value is not None] if node is not None else []
        if node is not None and node.op_type == "Add" and sites.get("o_proj") in others:
            return others[1 - others.index(sites["o_proj"])]
        return self.input_of(sites.get("input_layernorm"))

    def input_of(self, name: str | None) -> str | None:
        """The first input of the node that makes a value."""
        value = _first_input(self.values.get(name or ""))
        return None if value is None else value.name

    def final_norm(self) -> str | None:
        """What the head reads: the first input of the last matrix product, or a headless stack's output."""
        if "model.norm.rms_norm" in self.values:
            return "model.norm.rms_norm"
        if io_names.HIDDEN_STATES in self.outputs:
            return io_names.HIDDEN_STATES
        head = _ancestor(self.outputs.get(io_names.LOGITS), _MATRIX)
        return None if head is None or head.inputs[0] is None else head.inputs[0].name


def _mlp_roles(residual: ir.Value | None) -> dict[str, ir.Value | None]:
    found: dict[str, ir.Value | None] = {}
    norm = _consumer(residual, ("RMSNormalization",))
    found["post_attention_layernorm"] = _output(norm)
    projections = [node for node in _consumers(_output(norm)) if node.op_type in _MATRIX]
    for node in projections:
        gates = any(user.op_type in ("Sigmoid", "Swish", "Gelu") for user in _consumers(node.outputs[0]))
        found["gate_proj" if gates else "up_proj"] = node.outputs[0]
    down = _descendant(found.get("up_proj"), _MATRIX)
    found["activation"] = _first_input(_output(down))
    found["down_proj"] = _output(down)
    found["mlp_residual"] = _output(_consumer(_output(down), ("Add",)))
    return found


def _consumers(value: ir.Value | None) -> Iterator[ir.Node]:
    if value is not None:
        yield from value.consumers()


def _consumer(value: ir.Value | None, kinds: tuple[str, ...]) -> ir.Node | None:
    return next((node for node in _consumers(value) if node.op_type in kinds), None)


def _output(node: ir.Node | None) -> ir.Value | None:
    return None if node is None else node.outputs[0]


def _first_input(value: ir.Value | None) -> ir.Value | None:
    node = None if value is None else value.producer()
    return None if node is None or not node.inputs else node.inputs[0]


def _residual(branch: ir.Value | None) -> ir.Value | None:
    """The sum of a branch and something that is not made from it."""
    node = _consumer(branch, ("Add",))
    if node is None:
        return None
    front, seen = [value for value in node.inputs if value is not branch], set[int]()
    while front:
        value = front.pop()
        if value is branch:
            return None
        producer = None if value is None else value.producer()
        if producer is not None and id(producer) not in seen:
            seen.add(id(producer))
            front += producer.inputs
    return node.outputs[0]


def _ancestor(value: ir.Value | None, kinds: tuple[str, ...]) -> ir.Node | None:
    """The nearest node of one of the kinds that a value is made from, the node that makes it included."""
    return _search(value, kinds, lambda node: [v for v in node.inputs if v is not None], start_at_producer=True)


def _descendant(value: ir.Value | None, kinds: tuple[str, ...]) -> ir.Node | None:
    """The nearest node of one of the kinds that a value flows into."""
    return _search(value, kinds, lambda node: list(node.outputs), start_at_producer=False)


def _search(
    value: ir.Value | None,
    kinds: tuple[str, ...],
    following: Callable[[ir.Node], list[ir.Value]],
    *,
    start_at_producer: bool,
) -> ir.Node | None:
    front, seen = [value] if value is not None else [], set[int]()
    while front:
        nodes: list[ir.Node] = []
        for item in front:
            producer = item.producer()
            nodes += ([producer] if producer is not None else []) if start_at_producer else list(item.consumers())
        nodes = [node for node in nodes if id(node) not in seen]
        for node in nodes:
            if node.op_type in kinds:
                return node
        seen |= {id(node) for node in nodes}
        front = [found for node in nodes for found in following(node)]
    return None
