"""How an ONNX decoder that another tool exported wants to be called, read off its inputs, outputs and operators.

What an input or output is, its name says, by the table in names.py. What is done with the cache, the graph says:

- **growing** (optimum-onnx, torch.onnx, transformers.exporters; onnxruntime-genai's builder where it does not use
  GroupQueryAttention): the present cache is the past one with the new tokens' entries appended; a batch of unequal rows
  is padded on the left, which `attention_mask` (and `position_ids`, where there is one) tell the graph.
- **shared** (onnxruntime-genai's builder): com.microsoft's GroupQueryAttention writes past and present in one buffer of
  as many slots as the runtime chose; the row sums of `attention_mask` say how far each row is filled, and rows are
  padded on the right. https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
- **static** (a StaticCache as inputs): past and present have one shape, and an input says into which slots new entries
  go.
- **none**: a graph of the prompt alone, which makes the first cache; another one takes it from there.

Whatever does not fit is refused by name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import onnx
import torch

from blockexport.export.bundle.manifest import MANIFEST
from blockexport.models import io_names
from blockexport.models.element_types import BY_ONNX
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.wording import listed
from blockexport.runtime.foreign import names as roles
from blockexport.runtime.foreign.names import Names, name_roles

_TYPES = {number: element.torch_dtype for number, element in BY_ONNX.items()}
_SIZE = re.compile("[0-9]{1,18}")  # more digits are no size of any tensor
_QUANTISED = re.compile(r"MatMulBnb4|MatMulInteger.*|DynamicQuantize.*|DequantizeLinear|QLinear.*|QMoE")
ATTENTION = "GroupQueryAttention"

Shape = tuple[int | str, ...]
Values = Mapping[str, onnx.ValueInfoProto]
"""Inputs or outputs by role."""


class Cache(StrEnum):
    """What a graph does with its cache, in words."""

    GROWING = "a cache that grows by concatenation"
    SHARED = f"past and present in one buffer ({ATTENTION})"
    STATIC = "a cache of fixed length, written in place"
    NONE = "no cache, but the one it makes of a prompt"


@dataclass(frozen=True)
class ForeignPort:
    """Type and rank of an input that is no cache."""

    dtype: torch.dtype
    rank: int


@dataclass(frozen=True)
class Convention:
    """What a file takes and gives.

    Attributes:
        cache: what it does with its cache.
        layers: L.
        cache_shape: of the first cache as declared: [B, K, past length, H], names where a size is free. Of a graph
            without past caches, that of the first one it makes.
        dtype: type of the cache.
        names: the file's names by role.
        ports: the inputs that are no cache, by role.
        one_token: it takes a single token in each call.
        all_logits: it declares logits of every position of a call.
        unjudged: outputs that are neither logits nor cache.
    """

    cache: Cache
    layers: int
    cache_shape: Shape
    dtype: torch.dtype
    names: Names
    ports: Mapping[str, ForeignPort]
    one_token: bool
    all_logits: bool
    unjudged: tuple[str, ...]

    @property
    def slots(self) -> int | None:
        """Cache slots, where the file fixes their number."""
        length = self.cache_shape[2]
        return length if isinstance(length, int) else None

    @property
    def fixed_batch(self) -> int | None:
        """Rows, where the file fixes their number."""
        rows = self.cache_shape[0]
        return rows if isinstance(rows, int) else None

    @property
    def sentence(self) -> str:
        """What it is, in words."""
        others = ", ".join(dict.fromkeys(role.partition(".")[0] for role in self.ports if role != io_names.INPUT_IDS))
        single = "; one token in each call" if self.one_token else ""
        unjudged = f"; outputs not judged: {', '.join(self.unjudged)}" if self.unjudged else ""
        return f"{self.cache.value}{', with ' + others if others else ''}{single}{unjudged}"


def recognise(model: onnx.ModelProto, path: Path, mapped: Mapping[str, str] | None = None) -> Convention:
    """The convention of a file.

    Args:
        model: its graph.
        path: where it is, for messages.
        mapped: templates of names by role, as `names.read_map` gives them.

    Raises:
        UsageError: it is of none that is known; what does not fit is named.
        NotJudgedError: its weights are quantised.
    """
    graph = model.graph
    _refuse_kinds(graph, path)
    found = name_roles(model, mapped or {}, path)
    inputs, outputs = ({value.name: value for value in ends} for ends in (graph.input, graph.output))
    taken = {role: inputs[name] for role, name in found.inputs.items()}
    given = {role: outputs[name] for role, name in found.outputs.items()}
    ports = _ports(taken, [inputs[name] for name in found.odd], path)
    layers, pasts, presents = found.layers, io_names.past_names(found.layers), io_names.present_names(found.layers)
    if not layers:
        raise UsageError(
            f"{path} has no cache inputs such as {io_names.past_names(1)[0]}, so there are no decode steps to judge: "
            "export it with a cache (optimum: --task text-generation-with-past), or name them with --map "
            f"'{roles.PAST_KEY}=NAME_{{i}}'. It takes {listed(list(found.inputs.values()), 6)}"
        )
    for role in (io_names.LOGITS, *presents):
        if role not in given:
            raise UsageError(
                f"{path} has no output {role}, by that or a known name: it gives {listed(list(outputs), 6)}"
            )
    takes_cache = any(role.startswith(io_names.PAST) for role in taken)
    ends, wanted = (taken, _all_of(pasts, taken, path)) if takes_cache else (given, presents)
    caches = [ends[role] for role in wanted]
    shape = _cache_shape(caches, path)
    ids, logits, present = sizes_of(taken[io_names.INPUT_IDS]), sizes_of(given[io_names.LOGITS]), given[presents[0]]
    return Convention(
        cache=_cache_kind(graph, found, ports, shape, sizes_of(present), path) if takes_cache else Cache.NONE,
        layers=layers,
        cache_shape=shape,
        dtype=_TYPES[caches[0].type.tensor_type.elem_type],
        names=found,
        ports=ports,
        one_token=ids[1:] == (1,),
        all_logits=len(logits) == 3 and len(ids) == 2 and logits[1] == ids[1] != "?",
        unjudged=tuple(name for name in outputs if name not in found.outputs.values()),
    )


def _refuse_kinds(graph: onnx.GraphProto, path: Path) -> None:
    operators = {node.op_type for node in graph.node}
    if "TensorScatter" in operators and (path.parent / MANIFEST).is_file():
        named = shlex.quote(str(path.parent))
        raise UsageError(f"{path} is the file of a bundle: name that instead, blockexport compare {named}")
    quantised = sorted(name for name in operators if _QUANTISED.fullmatch(name))
    if quantised:
        raise NotJudgedError(
            f"{path} holds quantised weights ({', '.join(quantised)}): against the checkpoint's own weights they are "
            "no matter of rounding noise. Export it in fp32 or fp16, or in int4 with MatMulNBits, to judge the graph"
        )


def _ports(taken: Values, odd: Sequence[onnx.ValueInfoProto], path: Path) -> dict[str, ForeignPort]:
    for value in odd:
        raise UsageError(
            f"{path} has the input {value.name} {list(sizes_of(value))}, which no convention known here has: known "
            f"are {', '.join(roles.INPUTS)} and caches. Say what it is with --map ROLE={value.name}"
        )
    ports = {}
    for role, value in taken.items():
        if role.startswith(io_names.PAST):
            continue
        dtype, sizes = _TYPES.get(value.type.tensor_type.elem_type), sizes_of(value)
        known = roles.INPUTS[re.sub(r"\.\d+$", ".{i}", role)].forms
        if dtype is None or dtype not in known.get(len(sizes), ()):
            kind = _kind_of(value)
            allowed = "; ".join(
                f"{rank} dimensions of {', '.join(str(t).removeprefix('torch.') for t in types)}"
                for rank, types in known.items()
            )
            raise UsageError(f"{path} takes {value.name} as {kind} {list(sizes)}: known is {allowed}")
        ports[role] = ForeignPort(dtype, len(sizes))
    if io_names.INPUT_IDS not in ports:
        raise UsageError(
            f"{path} is no decoder that takes tokens: it has no input {io_names.INPUT_IDS}, it takes "
            f"{listed([value.name for value in taken.values()], 6)}. Name it with --map {io_names.INPUT_IDS}=NAME"
        )
    return ports


def _cache_kind(
    graph: onnx.GraphProto, found: Names, ports: Mapping[str, ForeignPort], past: Shape, present: Shape, path: Path
) -> Cache:
    if _shares(graph, found, path):
        if roles.ATTENTION_MASK not in ports:
            raise UsageError(
                f"{path} uses {ATTENTION} and has no {roles.ATTENTION_MASK}, which says how far each row is filled"
            )
        return Cache.SHARED
    if len(present) != 4 or (past[2] != present[2] and not isinstance(past[2], int)):
        return Cache.GROWING
    places = [io_names.POSITION_IDS, roles.CACHE_POSITION, roles.CUMULATIVE_LENGTH.format(i=0)]
    if past[2] != present[2] or not any(role in ports for role in places):
        raise UsageError(
            f"{path} has a cache of fixed length ({found.inputs[io_names.past_names(1)[0]]} is {list(past)}, and "
            f"{list(present)} after a call) and no input that says into which slots new entries go: known are "
            f"{', '.join(places)}"
        )
    return Cache.STATIC


def _shares(graph: onnx.GraphProto, found: Names, path: Path) -> bool:
    """Whether every layer's cache belongs to a GroupQueryAttention (inputs 3 and 4, outputs 1 and 2)."""
    nodes = [node for node in graph.node if node.op_type == ATTENTION]
    read = {name for node in nodes for name in node.input[3:5]}
    written = {name for node in nodes for name in node.output[1:3]}
    ends = zip(io_names.past_names(found.layers), io_names.present_names(found.layers), strict=True)
    pairs = [(found.inputs[past], found.outputs[present]) for past, present in ends]
    shared = [past in read and present in written for past, present in pairs]
    if any(shared) and not all(shared):
        odd = pairs[shared.index(False)][0]
        raise UsageError(
            f"{path} uses {ATTENTION} in some layers and not for {odd}: no convention known here does that"
        )
    return all(shared)


def _all_of(wanted: Sequence[str], values: Values, path: Path) -> Sequence[str]:
    missing = next((role for role in wanted if role not in values), None)
    if missing is not None:
        raise UsageError(f"{path} has cache inputs for {len(wanted) // 2} layers, and no {missing} among them")
    return wanted


def _cache_shape(caches: Sequence[onnx.ValueInfoProto], path: Path) -> Shape:
    """The shape that all caches have in common: those that the graph takes, or else those that it makes."""
    kinds = {(_kind_of(value), len(sizes_of(value))) for value in caches}
    shape = sizes_of(caches[0])
    if len(kinds) > 1 or _TYPES.get(caches[0].type.tensor_type.elem_type) not in roles.FLOATS or len(shape) != 4:
        listed = sorted(f"{kind} of {rank} dimensions" for kind, rank in kinds)
        raise UsageError(
            f"{path} has caches of {' and '.join(listed)}: known is [batch, key/value heads, length, head_dim] in one "
            "floating-point type"
        )
    return shape


def _kind_of(value: onnx.ValueInfoProto) -> str:
    """ONNX's name of an element type."""
    number = value.type.tensor_type.elem_type
    known = number in onnx.TensorProto.DataType.values()
    return str(onnx.TensorProto.DataType.Name(number)) if known else f"the unknown type {number}"


def sizes_of(value: onnx.ValueInfoProto) -> Shape:
    """The declared shape; a name that is a number, as some exporters write it, is that number."""
    dims = value.type.tensor_type.shape.dim
    sizes = (dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)
    return tuple(int(size) if isinstance(size, str) and _SIZE.fullmatch(size) else size for size in sizes)
