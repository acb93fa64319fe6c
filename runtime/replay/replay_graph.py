"""An ONNX graph run node by node in torch, each node in its declared type.

This is the arithmetic that a half-precision file asks for, which ONNX Runtime does not do on a CPU: it widens fp16
operators to float32. Every intermediate value can be watched by name without touching the file. Weights are mapped from
their files as they are; a value is dropped after its last use, so memory stays that of one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path

import onnx_ir as ir
import torch

from blockexport.models.element_types import BY_ONNX
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.regular_file import is_there, require_readable
from blockexport.runtime.replay.replay_call import Call
from blockexport.runtime.replay.replay_operators import OPERATORS, WITH_PARTS

Observer = Callable[[str, torch.Tensor], None]
"""Told each node's output, by name, as soon as it exists. A tensor that is kept must not be written to."""


class ReplayGraph:
    """A graph ready to run.

    Args:
        model: the graph; its external data lies relative to `folder`.
        folder: where the file lies (None: nothing is external).

    Raises:
        NotJudgedError: the graph holds an operator that the replay does not know; all of them are named.
        UsageError: a weights file is absent or too short.
    """

    def __init__(self, model: ir.Model, folder: Path | None = None) -> None:
        self.model = model
        self._folder = folder
        self._nodes = list(model.graph)
        _check_operators(self._nodes)
        self._files: dict[Path, torch.Tensor] = {}
        self._packed: dict[str, tuple[int, ...]] = {}
        self._weights = {
            str(name): self._mapped(tensor) if isinstance(tensor, ir.ExternalTensor) else _to_torch(tensor)
            for name, value in model.graph.initializers.items()
            if (tensor := value.const_value) is not None
        }
        self._attributes = [_attributes(node) for node in self._nodes]
        self.inputs = [str(value.name) for value in model.graph.inputs]
        self.outputs = [str(value.name) for value in model.graph.outputs]
        self._dropped = _last_uses(self._nodes, keep=self.outputs)

    @classmethod
    def load(cls, path: Path) -> ReplayGraph:
        """Read a file; its weights stay where they are."""
        try:
            model = ir.load(path)
        except Exception as error:  # protobuf's and onnx_ir's errors share no base class
            raise UsageError(f"{path} is not a readable ONNX file: {error}") from error
        return cls(model, path.parent)

    @torch.no_grad()
    def run(self, feeds: Mapping[str, torch.Tensor], observe: Observer | None = None) -> dict[str, torch.Tensor]:
        """The graph's outputs by name.

        Args:
            feeds: a tensor for every input.
            observe: told every node's output.
        """
        values: dict[str, torch.Tensor] = {**self._weights, **feeds}
        absent = [name for name in self.inputs if name not in values]
        if absent:
            raise UsageError(f"the graph's input {absent[0]} was not given")
        for index, node in enumerate(self._nodes):
            for value, output in zip(node.outputs, self._run_node(index, node, values), strict=True):
                values[str(value.name)] = output
                if observe is not None:
                    observe(str(value.name), output)
            for dropped in self._dropped[index]:
                values.pop(dropped, None)
        return {name: values[name] for name in self.outputs}

    def _run_node(self, index: int, node: ir.Node, values: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        inputs = [None if value is None else self._opened(str(value.name), values) for value in node.inputs]
        call = Call(node.op_type, node.name or str(node.outputs[0].name), inputs, self._attributes[index])
        try:
            if node.op_type in WITH_PARTS:
                return WITH_PARTS[node.op_type](call)
            return (OPERATORS[node.op_type](call),)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise call.refuse(str(error)) from error

    def _opened(self, name: str, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A value; numbers of 4 bits, which torch has no type for, are widened for the node that reads them."""
        return unpacked(values[name], self._packed[name]) if name in self._packed else values[name]

    def _mapped(self, tensor: ir.ExternalTensor) -> torch.Tensor:
        """A view into the mapped file; nothing is read before it is used."""
        assert self._folder is not None
        path = self._folder / str(tensor.location)
        if path not in self._files:
            if not is_there(path):
                raise UsageError(f"the graph's weights are in {path}, and there is no such file")
            require_readable(path)
            self._files[path] = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
        offset, shape = tensor.offset or 0, tensor.shape.numpy()
        if tensor.dtype == ir.DataType.INT4:
            self._packed[str(tensor.name)] = shape
            dtype, shape = torch.uint8, (-(-tensor.size // 2),)
        else:
            dtype = _torch_type(tensor)
        length = prod(shape) * dtype.itemsize
        if offset + length > self._files[path].numel():
            raise UsageError(f"{path} ends before the bytes of {tensor.name}: the file is damaged, export it again")
        piece = self._files[path][offset : offset + length]
        aligned = piece if offset % dtype.itemsize == 0 else piece.clone()
        return aligned.view(dtype).reshape(shape)


def _check_operators(nodes: Iterable[ir.Node]) -> None:
    unknown = sorted({f"{node.domain}::{node.op_type}".removeprefix("::") for node in nodes if not _is_known(node)})
    if unknown:
        raise NotJudgedError(
            f"the replay does not know {', '.join(unknown)}: it runs graphs of blockexport's own dialect. "
            "Judge this file with --backend onnxruntime"
        )


def _is_known(node: ir.Node) -> bool:
    known = node.op_type in WITH_PARTS or (node.op_type in OPERATORS and len(node.outputs) == 1)
    return known and node.domain in ("", "ai.onnx")


def _last_uses(nodes: list[ir.Node], keep: Iterable[str]) -> list[list[str]]:
    """For each node, the values that nothing needs after it. Weights are not among them: they cost nothing."""
    last: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for value in (*node.inputs, *node.outputs):
            if value is not None and not value.is_initializer():
                last[str(value.name)] = index
    dropped: list[list[str]] = [[] for _ in nodes]
    for name, index in last.items():
        if name not in keep:
            dropped[index].append(name)
    return dropped


def _attributes(node: ir.Node) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, attribute in node.attributes.items():
        value = attribute.value
        values[name] = _to_torch(value) if attribute.type == ir.AttributeType.TENSOR else value
    return values


def unpacked(packed: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Signed numbers of 4 bits, two a byte with the earlier one in the lower half, as int8."""
    flat = packed.view(torch.int8)
    halves = torch.stack((flat << 4 >> 4, flat >> 4), dim=-1)  # a shift to the right carries the sign along
    return halves.view(-1)[: prod(shape)].view(shape)


def _to_torch(tensor: ir.TensorProtocol) -> torch.Tensor:
    raw = torch.frombuffer(bytearray(tensor.tobytes()), dtype=torch.uint8) if tensor.size else torch.empty(0)
    return raw.view(_torch_type(tensor)).reshape(tensor.shape.numpy())


def _torch_type(tensor: ir.TensorProtocol) -> torch.dtype:
    element = BY_ONNX.get(int(tensor.dtype))
    if element is None:
        raise NotJudgedError(f"the replay does not know the type {tensor.dtype} of {tensor.name}")
    return element.torch_dtype
