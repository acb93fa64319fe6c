"""A bundle's ONNX file before anything runs it: is it there, whole, and the decoder that the manifest describes?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import onnx

from blockexport.export.bundle.manifest import ONNX_FILE, Manifest
from blockexport.export.bundle.onnx_file import read_onnx, require_file, require_weights
from blockexport.models import io_names, wording
from blockexport.models.attention_forms import AttentionForms
from blockexport.models.block.rope import TABLES, require_table_rows
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.element_types import BY_ONNX
from blockexport.models.errors import UsageError
from blockexport.models.interface import Port
from blockexport.models.quantised_matrix import CODES, ORDER

REMEDY = "Copy the whole bundle again, or export it again"


def read_graph(folder: Path, manifest: Manifest, name: str = ONNX_FILE) -> onnx.ModelProto:
    """A graph of the bundle, the main one by default; its weights stay in their files.

    Raises:
        UsageError: the file or one of weights is missing, cut off or damaged; or the graph's inputs and outputs are
            not those of the manifest.
    """
    path = folder / name
    if name not in manifest.files:
        raise UsageError(f"{folder} has no {name}: export with --attention {AttentionForms.BOTH} to have one")
    require_file(path, REMEDY)
    model = read_onnx(path, REMEDY)
    _check_interface(path, "inputs", model.graph.input, manifest.inputs)
    _check_interface(path, "outputs", model.graph.output, manifest.outputs)
    for tensor in model.graph.initializer:
        if tensor.name in chain(*TABLES) and tensor.dims and tensor.dims[0] != manifest.rope_table_rows:
            raise UsageError(
                f"{path} has {tensor.dims[0]} rows in its RoPE table {tensor.name}, and the manifest says "
                f"{manifest.rope_table_rows}. {REMEDY}"
            )
    require_weights(model, path, REMEDY)
    return model


def declare_max_sequence_length(
    model: onnx.ModelProto, max_sequence_length: int, table_rows: int, config: ModelConfig
) -> None:
    """Change M in an exported model's declared shapes, in place; nothing else depends on it.

    Raises:
        UsageError: M is not positive, or beyond the rows of the file's table of positions.
    """
    require_table_rows(max_sequence_length, table_rows, config)
    for slots in _slot_axes(model):
        slots.dim_value = max_sequence_length


def leave_slots_open(model: onnx.ModelProto) -> None:
    """Let the caches of an exported model have any number of slots, in place."""
    for slots in _slot_axes(model):
        slots.dim_param = "cache_slots"


def input_orders(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    """The quantised matrices whose inputs come in another order than the layer's, and the tensor that has it.

    Some share one, which bears the name of the first.
    """
    makers = {output: node for node in model.graph.node for output in node.output}
    for node in model.graph.node:
        match [makers.get(name) for name in node.input[:2]]:
            case [onnx.NodeProto(op_type="Gather") as gather, onnx.NodeProto(op_type="DequantizeLinear") as widened]:
                if gather.input[1].endswith(ORDER):
                    yield widened.input[0].removesuffix(CODES), gather.input[1]


def _slot_axes(model: onnx.ModelProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    for value in (*model.graph.input, *model.graph.output):
        if value.name.startswith((io_names.PAST, io_names.PRESENT)):
            yield value.type.tensor_type.shape.dim[2]


def _check_interface(path: Path, kind: str, values: Sequence[onnx.ValueInfoProto], listed: Sequence[Port]) -> None:
    remedy = (
        f"{REMEDY}; another tool's decoder is judged with `blockexport compare --onnx FILE --model CHECKPOINT`, and no "
        "bundle"
    )
    names, wanted = [value.name for value in values], [port.name for port in listed]
    if names != wanted:
        raise UsageError(
            f"{path} is not the decoder that the manifest describes: its {kind} are {wording.listed(names, 4)}, and "
            f"the manifest lists {wording.listed(wanted, 4)}. {remedy}"
        )
    for value, port in zip(values, listed, strict=True):
        found, expected = _declared(value), Port.declared(port.name, port.dtype, port.shape)
        if found != expected:
            raise UsageError(
                f"{path} is not the decoder that the manifest describes: among its {kind} is {found}, and the manifest "
                f"says {expected}. {remedy}"
            )


def _declared(value: onnx.ValueInfoProto) -> Port:
    tensor = value.type.tensor_type
    number = int(tensor.elem_type)
    dtype = BY_ONNX[number].name if number in BY_ONNX else f"ONNX type {number}"
    sizes = (dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    return Port.declared(value.name, dtype, sizes)
