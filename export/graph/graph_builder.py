"""Collects ONNX nodes, giving each its name, and reuses a node when the same one is asked for again.

Reuse is what lets every layer ask for its own reshapes, masks and constants and still share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

OPSET = 24


class GraphBuilder:
    """An ONNX graph under construction."""

    def __init__(self, inputs: Sequence[ir.Value]) -> None:
        self.inputs = list(inputs)
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self._made: dict[object, Sequence[ir.Value]] = {}
        self._names: dict[str, int] = {}

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Mapping[str, int | float | str | tuple[int, ...]] | None = None,
    ) -> ir.Value:
        """The output of `op_type` applied to `inputs`, from an earlier identical node if there is one."""
        attributes = attributes or {}
        key = (op_type, tuple(id(value) for value in inputs), tuple(sorted(attributes.items())))
        if key not in self._made:
            unique = self._unique(name)
            made = ir.node(op_type, inputs, attributes=dict(attributes), name=f"{unique}/{op_type}")
            made.outputs[0].name = unique
            self.nodes.append(made)
            self._made[key] = made.outputs
        return self._made[key][0]

    def split(self, x: ir.Value, sizes: Sequence[int], axis: int, names: Sequence[str]) -> Sequence[ir.Value]:
        """The parts of `x` along an axis, each under its name, from an earlier node if there is one."""
        key = ("Split", id(x), axis)
        if key not in self._made:
            inputs, unique = [x, self.constant(list(sizes), ir.DataType.INT64)], [self._unique(name) for name in names]
            node = f"{unique[0]}/Split"
            made = ir.node("Split", inputs, attributes={"axis": axis}, num_outputs=len(names), name=node)
            for output, name in zip(made.outputs, unique, strict=True):
                output.name = name
            self.nodes.append(made)
            self._made[key] = made.outputs
        return self._made[key]

    def has_split(self, x: ir.Value, axis: int) -> bool:
        """Whether `split` has been asked for a value along an axis."""
        return ("Split", id(x), axis) in self._made

    def initializer(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """A graph initializer under exactly this name; asked for twice, it is the same one."""
        if name not in self.initializers:
            self.initializers[name] = ir.Value(
                name=name,
                type=ir.TensorType(tensor.dtype),
                shape=ir.Shape(tuple(tensor.shape.numpy())),
                const_value=tensor,
            )
        return self.initializers[name]

    def constant(self, value: Sequence[int] | int | float, dtype: ir.DataType) -> ir.Value:
        """A small constant of a type, kept in the graph file and shared by all who need it."""
        array = np.asarray(value).astype(dtype.numpy())
        label = "x".join(str(item) for item in array.reshape(-1).tolist()) or "empty"
        name = f"constant_{dtype.name.lower()}_{'' if array.ndim else 'scalar_'}{label}"
        return self.initializer(ir.tensor(array, dtype=dtype, name=name), name)

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if count == 0 else f"{name}_{count}"
