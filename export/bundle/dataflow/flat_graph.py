"""An ONNX graph as one list of nodes, local functions and the bodies of If, Loop and Scan included, and its dataflow.

Values of a body get the name of their place in front; a body's inputs and outputs are joined to its node's by nodes
that are called If, Loop or Scan and have no attributes. An If whose condition is a constant is the branch it takes,
for so TensorRT's parser reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import onnx
from onnx import helper, inliner, shape_inference

from blockexport.export.bundle.dataflow.attribute_kinds import STANDARD_DOMAINS, require_kinds
from blockexport.export.bundle.dataflow.body_joins import joins
from blockexport.export.bundle.dataflow.stored_values import constant_tensor, values_of
from blockexport.models.errors import UsageError

Other = TypeVar("Other", int, float, str, None)

# Operands that give a shape or a type and none of the result's values.
_FORM_OPERANDS = {
    "Expand": 1,
    "Reshape": 1,
    "Tile": 1,
    "Unsqueeze": 1,
    "Squeeze": 1,
    "ConstantOfShape": 0,
    "CastLike": 1,
}
# Shape inference of onnx 1.23 knows no TensorScatter; the others are for graphs that it gives up.
_KEEP_TYPE = (
    "TensorScatter",
    "Identity",
    "Reshape",
    "Transpose",
    "Expand",
    "Slice",
    "Split",
    "Concat",
    "Attention",
    "If",
)


@dataclass(frozen=True)
class FlatNode:
    """A node with the names of its values made unique.

    Attributes:
        proto: the node, or what joins a body to its node.
        bodies: labels of the nodes whose bodies it is in, outermost first, constant branches left out.
    """

    proto: onnx.NodeProto
    bodies: tuple[str, ...] = ()

    @property
    def op_type(self) -> str:
        return str(self.proto.op_type)

    @property
    def label(self) -> str:
        """Operator and name, for a message."""
        return label(self.proto) + "".join(f" in the body of {body}" for body in reversed(self.bodies))

    def input(self, index: int) -> str:
        """The name of an input; empty where it is left out."""
        return str(self.proto.input[index]) if len(self.proto.input) > index else ""

    # An operator of another domain may have an attribute of the name that is something else: it is none of ours.
    def integer(self, name: str, default: Other) -> int | Other:
        """An attribute that is a whole number."""
        found = self._attribute(name, onnx.AttributeProto.INT)
        return default if found is None else int(found.i)

    def number(self, name: str, default: Other) -> float | Other:
        """An attribute that is a fraction."""
        found = self._attribute(name, onnx.AttributeProto.FLOAT)
        return default if found is None else float(found.f)

    def text(self, name: str, default: Other) -> str | Other:
        """An attribute that is a text."""
        found = self._attribute(name, onnx.AttributeProto.STRING)
        return default if found is None else found.s.decode("utf-8", "replace")

    def _attribute(self, name: str, kind: int) -> onnx.AttributeProto | None:
        return next((item for item in self.proto.attribute if item.name == name and item.type == kind), None)

    def data_inputs(self) -> list[str]:
        """Inputs whose values go into the result's values."""
        without = _FORM_OPERANDS.get(self.op_type)
        return [name for index, name in enumerate(self.proto.input) if name and index != without]


def label(node: onnx.NodeProto) -> str:
    """Operator and name of a node as it is in the file."""
    return f"{node.op_type} {node.name or 'of ' + next(iter(node.output), '?')}"


class FlatGraph:
    """See the module.

    Args:
        model: the graph.
        follow_shapes: also infer the shapes that nodes compute from other shapes.

    Attributes:
        nodes: every node that runs.
        inputs: graph inputs that are no initializers, by name.
        outputs: graph outputs, by name.
        producer: the node that makes a value.
        readers: the nodes that have a value among their inputs.

    Raises:
        UsageError: a local function calls itself, or an attribute is not what its operator takes.
    """

    def __init__(self, model: onnx.ModelProto, *, follow_shapes: bool = False) -> None:
        inlined = _with_types(_inlined(model), follow_shapes)
        graph, self._opset = inlined.graph, _opset(inlined)
        self._types: dict[str, onnx.TypeProto.Tensor] = {}
        self._constants: dict[str, onnx.TensorProto] = {}
        self.nodes: list[FlatNode] = []
        self._add(graph, {}, "", ())
        self.inputs = {value.name: value for value in graph.input if value.name not in self._constants}
        self.outputs = {value.name: value for value in graph.output}
        self.producer: dict[str, FlatNode] = {}
        self.readers: dict[str, list[FlatNode]] = {}
        for node in self.nodes:
            self.producer.update((name, node) for name in node.proto.output if name)
            for name in set(node.proto.input):
                self.readers.setdefault(name, []).append(node)

    def of(self, *op_types: str) -> Iterator[FlatNode]:
        """Nodes of some operators in order, whatever their domain: TensorRT's parser does not look at it."""
        return (node for node in self.nodes if node.op_type in op_types)

    def constant(self, name: str) -> onnx.TensorProto | None:
        """The tensor behind an initializer or the output of a Constant."""
        return self._constants.get(name)

    def type_of(self, name: str) -> int:
        """The element type of a value as a TensorProto.DataType; 0 where nothing tells."""

        def through(node: FlatNode) -> list[str]:
            return [node.input(int(node.op_type == "If"))] if node.op_type in _KEEP_TYPE else []

        told = (self._types[value].elem_type for value in self.upstream(name, through) if value in self._types)
        return next((int(kind) for kind in told if kind), 0)

    def sizes_of(self, name: str) -> list[int | str] | None:
        """The declared or inferred shape of a value: numbers, and names (or nothing) where an axis is not constant."""
        found = self._types.get(name)
        if found is None or not found.HasField("shape"):
            return None
        return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in found.shape.dim]

    def length(self, name: str, axis: int) -> int | None:
        """The size of an axis where it is constant."""
        sizes = self.sizes_of(name)
        if sizes is None or not -len(sizes) <= axis < len(sizes):
            return None
        size = sizes[axis]
        return size if isinstance(size, int) else None

    def upstream(self, name: str, through: Callable[[FlatNode], Iterable[str]]) -> Iterator[str]:
        """`name` and every value it is made from, nearest first; `through` gives the inputs of a node to follow."""
        queue, seen = [name], {name}
        for value in queue:
            yield value
            made_by = self.producer.get(value)
            for source in () if made_by is None else through(made_by):
                if source and source not in seen:
                    seen.add(source)
                    queue.append(source)

    def _add(
        self,
        graph: onnx.GraphProto,
        names: Mapping[str, str],
        prefix: str,
        bodies: tuple[str, ...],
        given: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Append the nodes of a graph; returns what its names are called here, where `given` has no other for them."""
        given = given or {}
        known = {**names, **{value.name: prefix + value.name for value in graph.input}}
        known.update((tensor.name, prefix + tensor.name) for tensor in graph.initializer)
        known.update((name, given.get(name, prefix + name)) for node in graph.node for name in node.output if name)
        for tensor in graph.initializer:
            self._constants[known[tensor.name]] = tensor
            self._types[known[tensor.name]] = _tensor_type(tensor)
        for value in (*graph.value_info, *graph.output, *graph.input):
            if value.type.HasField("tensor_type") and value.name in known:
                self._types[known[value.name]] = value.type.tensor_type
        for node in graph.node:
            self._add_node(node, known, prefix, bodies)
        return known

    def _add_node(self, node: onnx.NodeProto, known: Mapping[str, str], prefix: str, bodies: tuple[str, ...]) -> None:
        require_kinds(node, label(node), self._opset)
        inputs = [known.get(name, name) for name in node.input]
        outputs = [known.get(name, name) for name in node.output]
        inner = {item.name: item.g for item in node.attribute if item.type == onnx.AttributeProto.GRAPH}
        # What an operator cannot do without may be missing all the same: files are not checked before they are read.
        if not outputs:
            return  # whatever it computes goes nowhere
        if node.op_type == "Constant":
            self._constants[outputs[0]] = constant_tensor(node)
        if node.op_type == "If" and inputs and (taken := self._taken(node, inputs[0])) is not None:
            self._splice(taken, outputs, known, f"{prefix}{node.output[0]}/", bodies)
            return
        if not inner:
            flat = onnx.NodeProto()
            flat.CopyFrom(node)
            flat.input[:], flat.output[:] = inputs, outputs
            self.nodes.append(FlatNode(flat, bodies))
            return
        ends = []
        for name, body in inner.items():
            place = f"{prefix}{node.output[0]}/{name}/"
            names = self._add(body, known, place, (*bodies, label(node)))
            exits = [names.get(value.name, value.name) for value in body.output]
            ends.append(([names[value.name] for value in body.input], exits))
        self.nodes.extend(FlatNode(join, bodies) for join in joins(node, inputs, outputs, ends))

    def _taken(self, node: onnx.NodeProto, condition: str) -> onnx.GraphProto | None:
        """The branch that an If always takes."""
        constant = self._constants.get(condition)
        value = None if constant is None else values_of(constant)
        if value is None:
            return None
        branch = "then_branch" if value.size == 1 and bool(value.reshape(-1)[0]) else "else_branch"
        return next((item.g for item in node.attribute if item.name == branch), None)

    def _splice(
        self,
        branch: onnx.GraphProto,
        outputs: list[str],
        known: Mapping[str, str],
        prefix: str,
        bodies: tuple[str, ...],
    ) -> None:
        given = {value.name: name for value, name in zip(branch.output, outputs, strict=False)}
        names = self._add(branch, known, prefix, bodies, given)
        for value, name in zip(branch.output, outputs, strict=False):
            source = names.get(value.name, value.name)
            if source != name:  # it comes from outside the branch
                self.nodes.append(FlatNode(helper.make_node("Identity", [source], [name]), bodies))


def _opset(model: onnx.ModelProto) -> int:
    """The version of the standard operators."""
    return max((item.version for item in model.opset_import if item.domain in STANDARD_DOMAINS), default=1)


def _tensor_type(tensor: onnx.TensorProto) -> onnx.TypeProto.Tensor:
    return helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without local functions, as TensorRT's parser takes them: of whatever opset."""
    if not model.functions:
        return model
    same = onnx.ModelProto()
    same.CopyFrom(model)
    versions = {item.domain: item.version for item in model.opset_import}
    for function in same.functions:
        for item in function.opset_import:
            item.version = versions.get(item.domain, item.version)
    try:
        return inliner.inline_local_functions(same)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"the local functions of this file cannot be followed ({reason}): export it anew") from error


def _with_types(model: onnx.ModelProto, follow_shapes: bool) -> onnx.ModelProto:
    """The model with the types and shapes that follow from its inputs; without them where it is inconsistent."""
    try:
        return shape_inference.infer_shapes(model, data_prop=follow_shapes)
    except (shape_inference.InferenceError, ValueError, RuntimeError):
        return model
