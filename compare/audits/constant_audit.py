"""The numbers that a graph has from the config and not from the checkpoint, read off it and held against the config.

Epsilons of the norms, the scale of attention wherever it is applied, the sliding windows, the RoPE tables; and which
weight each place reads. Nothing is run. What a graph hides (a norm spelled out in single operations, say) is on a list
of its own: it is neither right nor wrong.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from blockexport.compare.audits.factors import factor_of, scalar_of, tensor_of
from blockexport.compare.audits.foreign_weights import fused_parts
from blockexport.compare.audits.table_difference import table_problem
from blockexport.compare.audits.type_audit import NORM_OPERATORS
from blockexport.compare.core.figures import Figures
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD, expected_tensors, norm_places
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.interface import Interface
from blockexport.models.quantised_matrix import CODES, SCALES
from blockexport.models.wording import told_apart

_SHOWN = 3


@dataclass(frozen=True)
class ConstantAudit(Figures):
    """What was found.

    Attributes:
        problems: what differs from the config, a clause each.
        unseen: what could not be found in the graph, a clause each.
        counts: how many of each kind were read.
    """

    problems: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Each kind is a key of its own."""
        return {"problems": self.problems, "unseen": self.unseen, **self.counts}


def audit_constants(graph: ir.Graph, interface: Interface) -> ConstantAudit:
    """Hold a decoder's graph against the config that it was made for.

    Args:
        graph: of the artifact.
        interface: of the decoder. A RoPE table needs M rows.
    """
    audit, nodes, config = ConstantAudit(), list(graph), interface.config
    _epsilons(audit, nodes, config)
    _scales(audit, nodes, config)
    _windows(audit, nodes, config)
    _forms_of_gelu(audit, nodes, config)
    _tables(audit, nodes, config, interface.max_sequence_length)
    _readers(audit, graph, expected_tensors(config, interface.ends), config)
    return audit


def _out(node: ir.Node) -> str:
    return str(node.outputs[0].name)


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.value)


def _place(name: str) -> str:
    """`model.layers.2.mlp.up_proj` as people say it."""
    layer, _, module = name.removeprefix("model.layers.").partition(".")
    return f"layer {layer} {module}" if name.startswith("model.layers.") else f"the final norm ({name})"


def _epsilons(audit: ConstantAudit, nodes: list[ir.Node], config: ModelConfig) -> None:
    kind = NORM_OPERATORS[config.norm]
    norms = [node for node in nodes if node.op_type == kind]
    found: dict[float, list[str]] = defaultdict(list)
    for place in norm_places(config):
        node = next((n for n in norms if _out(n).startswith(f"{place}.")), None)
        node = node or next((n for n in norms if _name(_input(n, 1)) == f"{place}.weight"), None)
        if node is None:
            audit.unseen.append(f"{_place(place)} has no {kind} to read an epsilon off")
        else:
            found[float(np.float32(_number(node, "epsilon", 1e-5)))].append(_place(place))
    wanted = float(np.float32(config.rms_norm_eps))
    audit.counts["epsilons"] = sum(map(len, found.values()))
    for epsilon, where in found.items():
        if epsilon != wanted:
            said = _places(where, audit.counts["epsilons"], "norms")
            there, right = told_apart(epsilon, wanted)
            audit.problems.append(f"{said} epsilon is {there}, the config's rms_norm_eps is {right}")


def _places(where: list[str], of: int, what: str) -> str:
    if len(where) <= _SHOWN:
        return ", ".join(where)
    return f"all {of} {what}:" if len(where) == of else f"{len(where)} of {of} {what} ({where[0]} and others):"


def _scales(audit: ConstantAudit, nodes: list[ir.Node], config: ModelConfig) -> None:
    """The product of all factors between the projections of q and k and the scores."""
    found: dict[float, list[str]] = defaultdict(list)
    for layer in range(config.num_hidden_layers):
        node = _attention(nodes, layer)
        if node is None:
            audit.unseen.append(f"layer {layer} has no Attention to read a scale off")
            continue
        growths: list[tuple[float, float]] = []
        factors = [factor_of(_input(node, 0), growths), factor_of(_input(node, 1), growths)]
        beta, length = config.query_growth, config.query_growth_length
        grows = [] if beta is None or length is None else [(float(length), float(np.float32(beta)))]
        if growths != grows and not any(isinstance(f, str) for f in factors):
            there, right = (
                " and ".join(f"by {b:g} with each {n:g} positions" for n, b in one) or "not at all"
                for one in (growths, grows)
            )
            audit.problems.append(f"layer {layer}: queries grow {there}, wanted {right}")
        own = _number(node, "scale", config.head_dim**-0.5)  # the operator's default
        hidden = [f for f in factors if isinstance(f, str)]
        if hidden:
            audit.unseen.append(f"layer {layer}: the scale of attention passes through {hidden[0]}")
        else:
            found[own * float(factors[0]) * float(factors[1])].append(f"layer {layer}")
        cap, wanted_cap = _number(node, "softcap", 0.0), config.attn_logit_softcapping or 0.0
        if not math.isclose(cap, wanted_cap, rel_tol=1e-6):
            audit.problems.append(f"layer {layer} attention softcap is {_cap(cap)}, wanted {_cap(wanted_cap)}")
    wanted, room = config.score_scale, 2 * float(np.finfo(np.float32).eps)  # factors are kept in float32
    asked = "1/sqrt(head_dim)" if config.query_scale is None else "the config's"
    audit.counts["attention scales"] = sum(map(len, found.values()))
    for scale, where in found.items():
        if not abs(scale - wanted) <= room * wanted:
            said = _places(where, config.num_hidden_layers, "layers")
            there, right = told_apart(scale, wanted)
            audit.problems.append(f"{said} attention scale is {there}, {asked} is {right}")


def _cap(cap: float) -> str:
    return f"{cap:g}" if cap else "none"


def _attention(nodes: list[ir.Node], layer: int) -> ir.Node | None:
    prefix = f"model.layers.{layer}."
    return next((n for n in nodes if n.op_type == "Attention" and _out(n).startswith(prefix)), None)


_FORMS = {"gelu": "none", "gelu_pytorch_tanh": "tanh"}


def _forms_of_gelu(audit: ConstantAudit, nodes: list[ir.Node], config: ModelConfig) -> None:
    """Exact, or by tanh: half precision rounds by more than the two differ, so that outputs do not tell them apart."""
    wanted, found = _FORMS.get(config.hidden_act), defaultdict[str, list[str]](list)
    if wanted is None:
        return
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        node = next((node for node in nodes if node.op_type == "Gelu" and _out(node).startswith(prefix)), None)
        if node is None:
            audit.unseen.append(f"layer {layer} has no Gelu to read its form off")
        else:
            found[node.attributes.get_string("approximate", "none")].append(f"layer {layer}")
    audit.counts["forms of GELU"] = sum(map(len, found.values()))
    told = {"none": "exact", "tanh": "by tanh"}
    for form, where in found.items():
        if form != wanted:
            said = _places(where, config.num_hidden_layers, "layers")
            audit.problems.append(f"{said} GELU is {told.get(form, form)}, the config's is {told[wanted]}")


def _windows(audit: ConstantAudit, nodes: list[ir.Node], config: ModelConfig) -> None:
    """A window is what a layer's mask subtracts from the positions."""
    for layer in range(config.num_hidden_layers):
        node = _attention(nodes, layer)
        mask = None if node is None else _input(node, 3)
        if mask is None:
            continue  # without an Attention the scale is not seen either, and says so; no mask is the outputs' matter
        found = {number for number in _subtracted(mask) if number is not None}
        wanted = config.window_of(layer)
        if found != ({wanted} if wanted is not None else set()):
            told = " and ".join(f"{number:g}" for number in sorted(found)) or "nothing"
            asked = (
                f"the config's sliding_window is {wanted}" if wanted is not None else "the config has no window there"
            )
            audit.problems.append(f"layer {layer}: the mask subtracts {told} from the positions, {asked}")


def _subtracted(mask: ir.Value) -> Iterator[float | None]:
    front, seen = [mask], set[int]()
    while front:
        node = front.pop().producer()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        front += [value for value in node.inputs if value is not None]
        if node.op_type == "Sub":
            yield scalar_of(node.inputs[1])


def _tables(audit: ConstantAudit, nodes: list[ir.Node], config: ModelConfig, slots: int) -> None:
    """Each table that a rotation reads, once, and by whom."""
    used: dict[tuple[str, str, ModelConfig], list[int]] = defaultdict(list)
    tensors: dict[str, ir.TensorProtocol | None] = {}
    for layer in range(config.num_hidden_layers):
        turns = [n for n in nodes if n.op_type == "RotaryEmbedding" and _out(n).startswith(f"model.layers.{layer}.")]
        if not config.has_rope(layer):
            if turns:
                audit.problems.append(f"layer {layer} has RotaryEmbedding, and the config has no RoPE there")
            continue
        if len(turns) < 2:
            audit.unseen.append(f"layer {layer} has {len(turns)} RotaryEmbedding, and q and k are to be turned")
        for node in turns:
            if bool(_number(node, "interleaved", 0)) != config.rope_interleaved:
                pairing = ("neighbours, wanted halves", "halves, wanted neighbours")[config.rope_interleaved]
                audit.problems.append(f"layer {layer} RotaryEmbedding pairs {pairing}")
            turned = _number(node, "rotary_embedding_dim", 0) or config.head_dim
            if turned != config.turned_dims:
                said = f"layer {layer} RotaryEmbedding turns {turned:g} dimensions of a head"
                audit.problems.append(f"{said}, wanted {config.turned_dims}")
            for index, kind in ((1, "cos"), (2, "sin")):
                value = _input(node, index)
                tensors[_name(value)] = tensor_of(value)
                used[kind, _name(value), config.rope_of(layer)].append(layer)
    for (kind, name, rope), layers in used.items():
        tensor = tensors[name]
        if tensor is None:
            audit.unseen.append(f"layer {layers[0]}: {kind} of RotaryEmbedding is computed ({name})")
            continue
        problem = table_problem(torch.from_numpy(np.array(tensor.numpy(), np.float32)), kind, rope, slots)
        if problem is not None:
            alone = len(set(layers)) + len(config.layers_without_rope) < config.num_hidden_layers
            where = f" in {_places([f'layer {i}' for i in sorted(set(layers))], config.num_hidden_layers, 'layers')}"
            audit.problems.append(f"RoPE table{where.rstrip(':') if alone else ''} {problem} ({kind})")
    audit.counts["RoPE tables"] = sum(tensor is not None for tensor in tensors.values())


def _name(value: ir.Value | None) -> str:
    return "" if value is None else str(value.name)


def _readers(audit: ConstantAudit, graph: ir.Graph, weights: Iterable[str], config: ModelConfig) -> None:
    """Each weight is read by the place whose name it has, or that has it beside others, and by none else."""
    coded = {name.removesuffix(CODES) for name in graph.initializers if name.endswith(CODES)}
    joined = {name: fused_parts(name, config) for name in sorted(coded - set(weights))}
    homes = {part: _home(name) for name, parts in joined.items() for part in parts}
    places = {_home(name) for name in [*weights, *joined]} - {_home(EMBEDDING)}
    ends = {EMBEDDING, OUTPUT_HEAD}
    problems: list[str] = []
    for name in [*weights, *joined]:
        stored = [value for part in ("", CODES, SCALES) if (value := graph.initializers.get(f"{name}{part}"))]
        readers = [_out(node) for value in stored for node, _ in value.uses()]
        if stored and not readers:  # of one that is not there `parameters` says that it is missing
            problems.append(f"{name} is read by no node")
        place = _home(name)
        for reader in readers if name not in ends else ():
            other = _of(reader, places)
            if other not in (None, place, homes.get(f"{place}.weight")):
                problems.append(f"{_place(str(other))} reads {name}")
    shown = len(problems) if len(problems) <= _SHOWN + 1 else _SHOWN
    audit.problems.extend(problems[:shown])
    if len(problems) > shown:
        audit.problems.append(f"{len(problems) - shown} weights more are not read where they belong")


def _home(weight: str) -> str:
    """The place that a weight is named after."""
    return weight.rpartition(".")[0]


def _of(reader: str, places: set[str]) -> str | None:
    """The place a node is named after: `P.linear` is of P."""
    stem = reader
    while stem:
        if stem in places:
            return stem
        stem = stem.rpartition(".")[0]
    return None
