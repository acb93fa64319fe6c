"""A traced fragment on its way into an ONNX graph: what its values are there, and what the new nodes are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from blockexport.export.graph.graph_builder import GraphBuilder
from blockexport.export.graph.graph_parameters import GraphParameters, QuantisedParameter
from blockexport.export.graph.quantised_product import Part
from blockexport.export.graph.trace import Fragment
from blockexport.models.element_types import element_of


class Stamp:
    """One pass of a fragment into a graph: a fragment traced once can be stamped any number of times.

    Args:
        builder: the graph to add to.
        fragment: the traced part.
        inputs: a value for each of the fragment's inputs.
        parameters: of the fragment.
        prefix: what the names of the new nodes begin with, such as `model.layers.3`.

    Attributes:
        values: of its inputs and of the nodes translated so far, by the names of their fx nodes.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        fragment: Fragment,
        inputs: Sequence[ir.Value],
        parameters: GraphParameters,
        prefix: str,
    ) -> None:
        self.builder, self.fragment, self.prefix, self.parameters = builder, fragment, prefix, parameters
        self._inputs = dict(zip(fragment.inputs, inputs, strict=True))
        self.values: dict[str, ir.Value | Part] = dict(self._inputs)

    def value(self, node: Any) -> ir.Value:
        """The graph value of an fx node; a parameter enters the graph when it is first used."""
        if node.name not in self.values:
            self.values[node.name] = self.parameters.value(self.fragment.parameters[node.name])
        value = self.values[node.name]
        return value.alone(self.builder) if isinstance(value, Part) else value

    def part(self, node: Any) -> Part | None:
        """An fx node's value as a part of another, as long as nothing has needed it by itself."""
        value = self.values.get(node.name)
        return value if isinstance(value, Part) and not value.is_split(self.builder) else None

    def quantised(self, node: Any) -> QuantisedParameter | None:
        """Codes and scales of a parameter; None where the graph has it as it is."""
        return self.parameters.quantised(self.fragment.parameters[node.name])

    def emit(
        self, node: torch.fx.Node, op_type: str, inputs: Sequence[ir.Value | None], suffix: str = "", **attributes: Any
    ) -> ir.Value:
        """A node named after the module it came from and the aten operator it translates."""
        return self.builder.node(op_type, inputs, self.place(node) + suffix, attributes)

    def dtype(self, node: Any) -> ir.DataType:
        """The ONNX type of an fx node's tensor."""
        return ir.DataType(element_of(node.meta["val"].dtype).onnx)

    def ints(self, values: Sequence[int]) -> ir.Value:
        """A constant int64 vector."""
        return self.builder.constant(list(values), ir.DataType.INT64)

    def ones(self, size: int) -> ir.Value:
        """A float32 vector of ones: made of a scalar, as a vector that is stored is a weight."""
        one = self.builder.constant(1.0, ir.DataType.FLOAT)
        return self.builder.node("Expand", [one, self.ints([size])], f"ones_{size}")

    def is_fixed(self, size: Any) -> bool:
        """Whether a size is the same in every run: a number that stands for no other."""
        return isinstance(size, int) and str(size) not in self.fragment.sizes

    def size(self, size: Any) -> ir.Value:
        """A size that is not fixed as an int64 vector of one element, read off the shape of a shared input."""
        name, axis = self.fragment.sizes[str(size if isinstance(size, int) else size.meta["val"])]
        source = self._inputs[name]
        return self.builder.node("Shape", [source], f"{source.name}.size_{axis}", {"start": axis, "end": axis + 1})

    def place(self, node: torch.fx.Node) -> str:
        """The module that an fx node came from, and its operator."""
        stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
        path = stack[-1].removeprefix("decoder").strip(".") if stack else ""
        if path.startswith("_empty"):
            path = ""
        operator = node.target._schema.name.rpartition("::")[2]  # type: ignore[union-attr]
        return ".".join(part for part in (self.prefix, path, operator) if part)
