"""A bench for spoiling an exported ONNX graph: find its nodes, slip others in between, replace its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from blockexport.export.bundle.manifest import ONNX_FILE
from blockexport.models.config.model_config import ModelConfig

Names = str | ir.Value | None
Spoil = Callable[["Bench"], None]
HALF = int(ir.DataType.FLOAT16)


class Bench:
    """The graph of a bundle, open for changes.

    Attributes:
        layers: those to be spoilt.
        dtype: of the weights.
        is_half: whether that is less than float32, which RoPE and the scaling of queries are widened to.
    """

    def __init__(self, folder: Path, config: ModelConfig, layers: Iterable[int] | None = None) -> None:
        self.model = ir.load(folder / ONNX_FILE)
        self.graph = self.model.graph
        self.config = config
        self.layers = list(range(config.num_hidden_layers) if layers is None else layers)
        self._count = 0
        dtype = self.value("model.embed_tokens.weight").dtype
        assert dtype is not None
        self.dtype, self.is_half = dtype, dtype != ir.DataType.FLOAT

    def value(self, name: str) -> ir.Value:
        """A value by its name: an input, an initializer or a node's output."""
        for value in (*self.graph.inputs, *self.graph.initializers.values()):
            if value.name == name:
                return value
        return next(value for value in self.node(name).outputs if value.name == name)

    def node(self, name: str) -> ir.Node:
        """The node that makes the value `name`."""
        return next(node for node in self.graph if any(value.name == name for value in node.outputs))

    def has(self, name: str) -> bool:
        """Whether some node makes a value `name`."""
        return any(value.name == name for node in self.graph for value in node.outputs)

    def nodes(self, op_type: str, *, everywhere: bool = False) -> Iterator[ir.Node]:
        """The nodes of a type in the layers to be spoilt, or in the whole graph."""
        prefixes = tuple(f"{kind}.{layer}." for layer in self.layers for kind in ("model.layers", "present"))
        for node in list(self.graph):
            if node.op_type == op_type and (everywhere or str(node.outputs[0].name).startswith(prefixes)):
                yield node

    def named(self, suffix: str) -> Iterator[ir.Node]:
        """The nodes `model.layers.i.SUFFIX` of the layers to be spoilt."""
        for layer in self.layers:
            yield self.node(f"model.layers.{layer}.{suffix}")

    def add(self, op_type: str, *inputs: Names, **attributes: Any) -> ir.Value:
        """A new node's output."""
        self._count += 1
        given = [self.value(item) if isinstance(item, str) else item for item in inputs]
        node = ir.node(op_type, given, attributes=attributes, name=f"spoilt_{self._count}/{op_type}")
        node.outputs[0].name = f"spoilt_{self._count}"
        self.graph.append(node)
        return node.outputs[0]

    def constant(self, value: Any, dtype: str = "int64") -> ir.Value:
        """A new initializer."""
        self._count += 1
        name = f"spoilt_{self._count}"
        tensor = ir.tensor(np.asarray(value, dtype), name=name)
        made = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        self.graph.register_initializer(made)
        return made

    def narrowed(self, value: ir.Value) -> ir.Value:
        """A float32 value in the type of the weights."""
        return self.add("Cast", value, to=int(self.dtype)) if self.is_half else value

    def widened(self, value: Names) -> ir.Value:
        """A value of any type in float32."""
        return self.add("Cast", value, to=int(ir.DataType.FLOAT))

    def put(self, old: ir.Value, new: ir.Value) -> None:
        """Let everyone who used `old` use `new`; what `new` is itself made from stays."""
        ancestors = {id(node) for node in _ancestors(new)}
        for user, index in list(old.uses()):
            if id(user) not in ancestors:
                user.replace_input_with(index, new)

    def become(self, node: ir.Node, new: ir.Value) -> None:
        """`put`, and `new` takes the name as well: the graph looks as if it had been exported so."""
        old = node.outputs[0]
        self.put(old, new)
        name = old.name
        old.name = f"{name}.before"
        new.name = name

    def change(self, node: ir.Node, op_type: str, inputs: Iterable[Names], **attributes: Any) -> None:
        """Make a node another operator under the same name."""
        new = self.add(op_type, *inputs, **attributes)
        old = node.outputs[0]
        is_output = old in self.graph.outputs
        if is_output:
            self.graph.outputs[self.graph.outputs.index(old)] = new
            new.type, new.shape = old.type, old.shape
        self.put(old, new)
        name = old.name
        old.name, new.name = f"{name}.before", name
        self.graph.remove(node, safe=False)

    def swap_inputs(self, first: ir.Node, second: ir.Node) -> None:
        """Exchange the weights (and biases) of two matrix products."""
        for index in range(1, len(first.inputs)):
            left, right = first.inputs[index], second.inputs[index]
            first.replace_input_with(index, right)
            second.replace_input_with(index, left)

    def swap_uses(self, first: str, second: str) -> None:
        """Let everyone who used one value use the other."""
        left, right = self.value(first), self.value(second)
        for users, other in ((list(left.uses()), right), (list(right.uses()), left)):
            for user, index in users:
                user.replace_input_with(index, other)

    def save(self, folder: Path, source: Path) -> Path:
        """Write a bundle beside the sound one: everything copied, the graph replaced."""
        folder.mkdir(parents=True)
        for path in source.iterdir():
            if path.is_file() and path.name != ONNX_FILE:
                (folder / path.name).write_bytes(path.read_bytes())
        self.graph.sort()
        ir.save(self.model, folder / ONNX_FILE)
        return folder


def attribute(op_type: str, name: str, value: int | float, *, everywhere: bool = False) -> Spoil:
    """Set an attribute of all nodes of a type."""

    def spoil(bench: Bench) -> None:
        for node in bench.nodes(op_type, everywhere=everywhere):
            node.attributes[name] = ir.AttrInt64(name, value) if isinstance(value, int) else ir.AttrFloat32(name, value)

    return spoil


def _ancestors(value: ir.Value) -> list[ir.Node]:
    """The new nodes after a value (those put in by the bench), itself included."""
    found, front = [], [value.producer()]
    while front:
        node = front.pop()
        if node is not None and str(node.name).startswith("spoilt_"):
            found.append(node)
            front += [item.producer() for item in node.inputs if item is not None]
    return found
