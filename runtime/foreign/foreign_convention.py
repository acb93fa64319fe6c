"""How an ONNX decoder that another tool exported wants to be called, read off its inputs, outputs and operators.

Two ways of keeping the cache are known, both with the names that Hugging Face's optimum gave them:

- **growing** (optimum-onnx; onnxruntime-genai's builder where it does not use GroupQueryAttention): `present.N.key` is
  `past_key_values.N.key` with the new tokens' keys behind it; a batch of unequal rows is padded on the left, which
  `attention_mask` (and `position_ids`, where there is one) tell the graph.
- **shared** (onnxruntime-genai's builder): com.microsoft's GroupQueryAttention writes past and present in one buffer of
  as many slots as the runtime chose; the row sums of `attention_mask` say how far each row is filled, and rows are
  padded on the right. https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md

Whatever does not fit one of the two is refused by name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch

from blockexport.export.bundle.check_graph import PROTOBUF_BYTES
from blockexport.export.bundle.model_bounds import check_bounds
from blockexport.models import io_names
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.regular_file import is_there, read_bytes, require_readable

ATTENTION_MASK = "attention_mask"
NUM_LOGITS_TO_KEEP = "num_logits_to_keep"

_TYPES: Mapping[int, torch.dtype] = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
    onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.INT64: torch.int64,
}
ELEMENT_TYPES: Mapping[torch.dtype, int] = {dtype: kind for kind, dtype in _TYPES.items()}
_INTEGERS = (torch.int32, torch.int64)
# Integer inputs and the ranks they may have.
_KNOWN: Mapping[str, tuple[int, ...]] = {
    io_names.INPUT_IDS: (2,),
    ATTENTION_MASK: (2,),
    io_names.POSITION_IDS: (2,),
    NUM_LOGITS_TO_KEEP: (0, 1),
}
_CACHE = re.compile(r"past_key_values\.(\d+)\.(key|value)")
_QUANTISED = re.compile(
    r"MatMulNBits|MatMulBnb4|MatMulInteger.*|DynamicQuantize.*|DequantizeLinear|QLinear.*|.*BlockQuantized|QMoE"
)
_ATTENTION = "GroupQueryAttention"

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Convention:
    """What a file takes and gives.

    Attributes:
        shared: past and present are one buffer; otherwise the cache grows by concatenation.
        layers: L.
        cache_shape: of `past_key_values.0.key` as declared: [B, K, past length, H], names where a size is free.
        dtype: type of the cache.
        integers: types of the integer inputs the file has.
        ranks: ranks of the same.
        unjudged: outputs that are neither logits nor cache.
    """

    shared: bool
    layers: int
    cache_shape: Shape
    dtype: torch.dtype
    integers: Mapping[str, torch.dtype]
    ranks: Mapping[str, int]
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
        """For people."""
        cache = (
            f"past and present in one buffer ({_ATTENTION})" if self.shared else "a cache that grows by concatenation"
        )
        others = ", ".join(name for name in self.integers if name != io_names.INPUT_IDS)
        unjudged = f"; outputs not judged: {', '.join(self.unjudged)}" if self.unjudged else ""
        return f"{cache}{', with ' + others if others else ''}{unjudged}"


def read_model(path: Path) -> onnx.ModelProto:
    """The graph of an ONNX file, without the weights that lie in other files.

    Raises:
        UsageError: the file is no ONNX, or a file of weights that it names is not there.
    """
    content = read_bytes(path, PROTOBUF_BYTES)
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's errors share no public base class
        raise UsageError(f"{path} is not an ONNX file: {error}") from error
    # Protobuf reads many a file of another kind as a message of unknown fields.
    if not model.graph.node:
        raise UsageError(f"{path} is not an ONNX file: there is no graph in it")
    check_bounds(model, path)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key != "location":
                continue
            if not is_there(path.parent / entry.value):
                raise UsageError(
                    f"{path} keeps its weights in {entry.value}, which is not beside it: put the file there"
                )
            require_readable(path.parent / entry.value)
    return model


def recognise(model: onnx.ModelProto, path: Path) -> Convention:
    """The convention of a file.

    Raises:
        UsageError: it is of none that is known; what does not fit is named.
        NotJudgedError: its weights are quantised.
    """
    graph = model.graph
    _refuse_kinds(graph, path)
    weights = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in weights}
    outputs = {value.name: value for value in graph.output}
    caches = {name: value for name, value in inputs.items() if _CACHE.fullmatch(name)}
    integers = _integer_inputs({name: value for name, value in inputs.items() if name not in caches}, path)
    layers = len(caches) // 2
    if not caches:
        raise UsageError(
            f"{path} has no cache inputs such as past_key_values.0.key, so there are no decode steps to judge: export "
            "it with a cache (optimum: --task text-generation-with-past)"
        )
    for name in (io_names.LOGITS, *io_names.present_names(layers)):
        if name not in outputs:
            raise UsageError(f"{path} has no output {name}: it gives {_some(outputs)}")
    shared = _shares(graph, layers, path)
    shapes = _cache_shapes(inputs, outputs, layers, path, shared)
    if shared and ATTENTION_MASK not in integers:
        raise UsageError(f"{path} uses {_ATTENTION} and has no {ATTENTION_MASK}, which says how far each row is filled")
    unjudged = [name for name in outputs if name not in {io_names.LOGITS, *io_names.present_names(layers)}]
    return Convention(
        shared=shared,
        layers=layers,
        cache_shape=shapes,
        dtype=_TYPES[inputs[io_names.past_names(1)[0]].type.tensor_type.elem_type],
        integers=integers,
        ranks={name: len(_shape(inputs[name])) for name in integers},
        unjudged=tuple(unjudged),
    )


def check_architecture(model: onnx.ModelProto, convention: Convention, config: ModelConfig, path: Path) -> None:
    """Compare what the file's shapes say with the checkpoint's dimensions.

    Raises:
        UsageError: they are of different models; the first dimension that differs is named.
    """
    found: list[tuple[str, int | str | None, int]] = [
        ("num_hidden_layers", convention.layers, config.num_hidden_layers),
        ("num_key_value_heads", convention.cache_shape[1], config.num_key_value_heads),
        ("head_dim", convention.cache_shape[3], config.head_dim),
    ]
    for node in model.graph.node:
        if node.op_type == _ATTENTION:
            heads = {attribute.name: attribute.i for attribute in node.attribute}
            found.append(("num_attention_heads", heads.get("num_heads"), config.num_attention_heads))
            found.append(("num_key_value_heads", heads.get("kv_num_heads"), config.num_key_value_heads))
    logits = next(value for value in model.graph.output if value.name == io_names.LOGITS)
    shape = _shape(logits)
    found.append(("vocab_size", shape[-1] if shape else None, config.vocab_size))
    for name, theirs, ours in found:
        if isinstance(theirs, int) and theirs != ours:
            raise UsageError(
                f"{path} is another architecture than the checkpoint: {name} is {theirs} in the file and {ours} in the "
                "checkpoint. Name the checkpoint that it was exported from"
            )
    _check_widths(model, config, path)


def _check_widths(model: onnx.ModelProto, config: ModelConfig, path: Path) -> None:
    """Some weight must have each of the widths that inputs and outputs do not show."""
    matrices = [tuple(tensor.dims) for tensor in model.graph.initializer if len(tensor.dims) == 2]
    constants = [
        a.t for node in model.graph.node if node.op_type == "Constant" for a in node.attribute if a.HasField("t")
    ]
    dims = {dim for shape in matrices + [tuple(t.dims) for t in constants] for dim in shape}
    wanted = {"hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size}
    for name, size in wanted.items():
        if size not in dims:
            raise UsageError(
                f"{path} is another architecture than the checkpoint: {name} is {size} in the checkpoint, and no "
                "weight of the file is that wide. Name the checkpoint that it was exported from"
            )


def _refuse_kinds(graph: onnx.GraphProto, path: Path) -> None:
    operators = {node.op_type for node in graph.node}
    if "TensorScatter" in operators:
        raise UsageError(
            f"{path} writes its cache with TensorScatter, as blockexport's own files do: name the bundle instead, "
            f"blockexport compare {shlex.quote(str(path.parent))}"
        )
    quantised = sorted(name for name in operators if _QUANTISED.fullmatch(name))
    if quantised:
        raise NotJudgedError(
            f"{path} holds quantised weights ({', '.join(quantised)}): against the checkpoint's own weights they are "
            "no matter of rounding noise. Export it in fp32 or fp16 to judge the graph"
        )


def _integer_inputs(inputs: Mapping[str, onnx.ValueInfoProto], path: Path) -> dict[str, torch.dtype]:
    found = {}
    for name, value in inputs.items():
        dtype = _TYPES.get(value.type.tensor_type.elem_type)
        if name not in _KNOWN:
            raise UsageError(
                f"{path} has the input {name} {list(_shape(value))}, which no convention known here has: known are "
                f"{', '.join(_KNOWN)} and past_key_values.N.key and .value"
            )
        if dtype not in _INTEGERS or len(_shape(value)) not in _KNOWN[name]:
            kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
            raise UsageError(
                f"{path} takes {name} as {kind} {list(_shape(value))}: known is int64 or int32 of "
                f"{' or '.join(str(rank) for rank in _KNOWN[name])} dimensions"
            )
        found[name] = dtype
    if io_names.INPUT_IDS not in found:
        raise UsageError(
            f"{path} is no decoder that takes tokens: it has no input {io_names.INPUT_IDS}, it takes {_some(inputs)}"
        )
    return found


def _shares(graph: onnx.GraphProto, layers: int, path: Path) -> bool:
    """Whether every layer's cache belongs to a GroupQueryAttention (inputs 3 and 4, outputs 1 and 2)."""
    nodes = [node for node in graph.node if node.op_type == _ATTENTION]
    read = {name for node in nodes for name in node.input[3:5]}
    written = {name for node in nodes for name in node.output[1:3]}
    pairs = list(zip(io_names.past_names(layers), io_names.present_names(layers), strict=True))
    shared = [past in read and present in written for past, present in pairs]
    if any(shared) and not all(shared):
        odd = pairs[shared.index(False)][0]
        raise UsageError(
            f"{path} uses {_ATTENTION} in some layers and not for {odd}: no convention known here does that"
        )
    return all(shared)


def _cache_shapes(
    inputs: Mapping[str, onnx.ValueInfoProto],
    outputs: Mapping[str, onnx.ValueInfoProto],
    layers: int,
    path: Path,
    shared: bool,
) -> Shape:
    """The shape that all caches have in common."""
    names = io_names.past_names(layers)
    if any(name not in inputs for name in names):
        missing = next(name for name in names if name not in inputs)
        raise UsageError(f"{path} has cache inputs for {layers} layers, and no {missing} among them")
    kinds = {(inputs[name].type.tensor_type.elem_type, len(_shape(inputs[name]))) for name in names}
    first = inputs[names[0]]
    dtype = _TYPES.get(first.type.tensor_type.elem_type)
    if len(kinds) > 1 or dtype in (None, *_INTEGERS) or len(_shape(first)) != 4:
        listed = sorted(f"{onnx.TensorProto.DataType.Name(kind)} of {rank} dimensions" for kind, rank in kinds)
        raise UsageError(
            f"{path} has caches of {' and '.join(listed)}: known is [batch, key/value heads, length, head_dim] in one "
            "floating-point type"
        )
    past = _shape(first)
    present = _shape(outputs[io_names.present_names(1)[0]])
    if not shared and (isinstance(past[2], int) or (len(present) == 4 and present[2] == past[2])):
        raise UsageError(
            f"{path} has a cache of fixed length ({names[0]} is {list(past)} and stays so) without {_ATTENTION}: where "
            "such a file expects new entries is not known here"
        )
    return past


def _shape(value: onnx.ValueInfoProto) -> Shape:
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)


def _some(names: Mapping[str, object]) -> str:
    shown = list(names)[:6]
    return ", ".join(shown) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
