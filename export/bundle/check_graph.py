"""A bundle's ONNX file before anything runs it: is it there, whole, and the decoder that the manifest describes?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from blockexport.export.bundle.manifest import ONNX_FILE, Manifest
from blockexport.export.bundle.onnx_file import read_onnx, require_file, require_weights
from blockexport.export.bundle.rope_file import COS, SIN
from blockexport.models import io_names
from blockexport.models.block.rope import require_table_rows
from blockexport.models.element_types import BY_ONNX
from blockexport.models.errors import UsageError
from blockexport.models.interface import Port

REMEDY = "Copy the whole bundle again, or export it again"


def read_graph(folder: Path, manifest: Manifest) -> onnx.ModelProto:
    """The bundle's graph; its weights stay in their files.

    Raises:
        UsageError: the file or one of weights is missing, cut off or damaged; or the graph's inputs and outputs are
            not those of the manifest.
    """
    path = folder / ONNX_FILE
    require_file(path, REMEDY)
    model = read_onnx(path, REMEDY)
    _check_interface(path, "inputs", model.graph.input, manifest.inputs)
    _check_interface(path, "outputs", model.graph.output, manifest.outputs)
    for tensor in model.graph.initializer:
        if tensor.name in (COS, SIN) and tensor.dims and tensor.dims[0] != manifest.rope_table_rows:
            raise UsageError(
                f"{path} has {tensor.dims[0]} rows in its RoPE table {tensor.name}, and the manifest says "
                f"{manifest.rope_table_rows}. {REMEDY}"
            )
    require_weights(model, path, REMEDY)
    return model


def declare_max_sequence_length(
    model: onnx.ModelProto, max_sequence_length: int, table_rows: int, trained: int
) -> None:
    """Change M in an exported model's declared shapes, in place; nothing else depends on it.

    Raises:
        UsageError: M is not positive, or beyond the rows of the file's RoPE table.
    """
    require_table_rows(max_sequence_length, table_rows, trained)
    for value in (*model.graph.input, *model.graph.output):
        if value.name.startswith((io_names.PAST, io_names.PRESENT)):
            value.type.tensor_type.shape.dim[2].dim_value = max_sequence_length


def _check_interface(path: Path, kind: str, values: Sequence[onnx.ValueInfoProto], listed: Sequence[Port]) -> None:
    remedy = (
        f"{REMEDY}; another tool's decoder is judged with `blockexport compare --onnx FILE --model CHECKPOINT`, and no "
        "bundle"
    )
    names, wanted = [value.name for value in values], [port.name for port in listed]
    if names != wanted:
        raise UsageError(
            f"{path} is not the decoder that the manifest describes: its {kind} are {_some(names)}, and the manifest "
            f"lists {_some(wanted)}. {remedy}"
        )
    for value, port in zip(values, listed, strict=True):
        found, expected = _declared(value), (port.dtype, _without_names(port.shape))
        if found != expected:
            raise UsageError(
                f"{path} is not the decoder that the manifest describes: {value.name} of its {kind} is "
                f"{_shown(*found)}, and the manifest says {_shown(*expected)}. {remedy}"
            )


def _declared(value: onnx.ValueInfoProto) -> tuple[str, tuple[int | None, ...]]:
    """Type and shape of an input or output; None is an axis of any size."""
    tensor = value.type.tensor_type
    number = int(tensor.elem_type)
    shape = tuple(int(dim.dim_value) if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    return BY_ONNX[number].name if number in BY_ONNX else f"ONNX type {number}", shape


def _without_names(shape: Sequence[str | int]) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in shape)


def _shown(dtype: str, shape: Sequence[int | None]) -> str:
    return f"{dtype} [{', '.join('any' if size is None else str(size) for size in shape)}]"


def _some(names: Sequence[str]) -> str:
    """The names, or the first few and how many there are."""
    if len(names) <= 4:
        return ", ".join(names) or "none"
    return f"{', '.join(names[:4])} ... ({len(names)} in all)"
