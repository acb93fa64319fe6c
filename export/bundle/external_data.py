"""Where a graph keeps its weights in other files. Readers differ in what they make of a place that is badly written
(some take the digits it begins with, some byte 0), so one that can be read in more than one way is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath

import onnx

from blockexport.models.element_types import BY_ONNX
from blockexport.models.errors import UsageError

REMEDY = "Copy the whole model again, or export it again"
_NUMBER = re.compile("[0-9]{1,18}")  # as text: more digits are no place in any file


@dataclass(frozen=True)
class ExternalPlace:
    """Where the values of a tensor are: `length` bytes (None: not said) at `offset` of the file `location`; by shape
    and type they take `needed` bytes (None: not a whole number of bytes each)."""

    tensor: str
    location: str
    offset: int
    length: int | None
    needed: int | None


def external_places(model: onnx.ModelProto, path: Path) -> list[ExternalPlace]:
    """The place of every tensor of the model in `path` that is kept in another file.

    Raises:
        UsageError: a place is no number, is given twice, or lies outside of the model's folder.
    """
    return [_place(tensor, path) for tensor in _tensors(model) if tensor.data_location == onnx.TensorProto.EXTERNAL]


def _place(tensor: onnx.TensorProto, path: Path) -> ExternalPlace:
    where = {entry.key: entry.value for entry in tensor.external_data}
    if len(where) != len(tensor.external_data):
        raise UsageError(f"{path} says twice where the values of {tensor.name} are. {REMEDY}")
    for key in ("offset", "length"):
        if key in where and not _NUMBER.fullmatch(where[key]):
            raise UsageError(
                f"{path} says that the values of {tensor.name} have the {key} {where[key][:40]!r}, and it must be a "
                f"number of bytes. {REMEDY}"
            )
    location = where.get("location", "")
    file = PurePosixPath(location)
    if not location or file.is_absolute() or ".." in file.parts:
        raise UsageError(
            f"{path} keeps the values of {tensor.name} in {location!r}, and that must be a file in its folder. {REMEDY}"
        )
    length = int(where["length"]) if "length" in where else None
    element = BY_ONNX.get(tensor.data_type)  # none for strings and for types of a fraction of a byte
    needed = None if element is None else prod(tensor.dims) * element.itemsize
    return ExternalPlace(tensor.name, location, int(where.get("offset", 0)), length, needed)


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _of_graph(model.graph)
    for training in model.training_info:
        yield from _of_graph(training.initialization)
        yield from _of_graph(training.algorithm)
    for function in model.functions:
        yield from _of_attributes(function.attribute_proto)
        yield from _of_nodes(function.node)


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _of_sparse(graph.sparse_initializer)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        yield from _of_attributes(node.attribute)


def _of_attributes(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        yield from (attribute.t, *attribute.tensors)
        yield from _of_sparse((attribute.sparse_tensor, *attribute.sparse_tensors))
        for graph in (attribute.g, *attribute.graphs):
            yield from _of_graph(graph)


def _of_sparse(tensors: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for tensor in tensors:
        yield from (tensor.values, tensor.indices)
