"""A product by a quantised matrix, and by several that lie side by side: one node, whose output is split again.

It is split as late as can be: heads that are viewed and turned alike are so together, before they part. At one token
a step a node costs as much for three matrices as for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from blockexport.export.graph.graph_builder import GraphBuilder
from blockexport.export.graph.graph_parameters import GraphParameters, QuantisedParameter


@dataclass(frozen=True)
class Part:
    """Some of a value along an axis, as long as nothing needs it by itself.

    Attributes:
        whole: what it is a part of.
        place: what names of nodes that work on the whole begin with.
        names: what the parts are called, once they are values of their own.
        sizes: of all parts.
        index: which it is.
        axis: along which they lie.
    """

    whole: ir.Value
    place: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    index: int
    axis: int

    def alone(self, builder: GraphBuilder) -> ir.Value:
        """As a value of its own."""
        return builder.split(self.whole, self.sizes, self.axis, self.names)[self.index]

    def is_split(self, builder: GraphBuilder) -> bool:
        """Whether the parts are values of their own already."""
        return builder.has_split(self.whole, self.axis)

    def viewed(self, head_dim: int, builder: GraphBuilder, batch_and_length: Sequence[ir.Value]) -> Part | None:
        """A part of [T, N] as heads [B, S, heads, H]; None where the parts are not made of heads of H.

        Args:
            head_dim: H.
            builder: of the graph.
            batch_and_length: B and S, each a vector of one element.
        """
        if any(size % head_dim for size in self.sizes):
            return None
        heads = tuple(size // head_dim for size in self.sizes)
        fixed = builder.constant([sum(heads), head_dim], ir.DataType.INT64)
        shape = builder.node("Concat", [*batch_and_length, fixed], f"{self.place}.view.shape", {"axis": 0})
        whole = builder.node("Reshape", [self.whole, shape], f"{self.place}.view")
        return replace(self._called("view"), whole=whole, sizes=heads, axis=2)

    def turned(self, order: tuple[int, ...], builder: GraphBuilder) -> Part:
        """The axes in another order."""
        whole = builder.node("Transpose", [self.whole], f"{self.place}.transpose", {"perm": order})
        return replace(self._called("heads"), whole=whole, axis=order.index(self.axis))

    def _called(self, what: str) -> Part:
        return replace(self, names=tuple(f"{name.rpartition('.')[0]}.{what}" for name in self.names))


def quantised_product(
    builder: GraphBuilder,
    parameters: GraphParameters,
    matrix: QuantisedParameter,
    inputs_TK: ir.Value,
    dtype: ir.DataType,
    *,
    bias: bool,
    place: str,
) -> ir.Value | Part:
    """Some inputs times a matrix, plus its bias where it has one.

    Args:
        builder: of the graph.
        parameters: of the model, for biases.
        matrix: with those beside it.
        inputs_TK: what is multiplied.
        dtype: of the result.
        bias: whether there is one.
        place: what the nodes are called where the matrix is by itself.
    """
    tensors = matrix.tensors
    alone = len(tensors.outputs) == 1
    place = place if alone else f"{tensors.name.removesuffix('.weight')}.linear"
    # Quantised matrices are [in, out]: ONNX Runtime multiplies by the codes only in this form, and dequantises the
    # whole matrix at every call in the other.
    scales = in_type(builder, matrix.scales, dtype, f"{place}.scales")
    grid = [matrix.codes, scales] if matrix.zero_points is None else [matrix.codes, scales, matrix.zero_points]
    form = {"axis": 0, "block_size": matrix.scheme.block_size}
    operands = [inputs_TK, builder.node("DequantizeLinear", grid, f"{place}.weight", form)]
    if matrix.order is not None:
        # The activations are put in the order of the codes, whose blocks would fall apart in any other. Matrices with
        # one order and one input share the node.
        operands[0] = builder.node("Gather", [inputs_TK, matrix.order], f"{place}.inputs", {"axis": 1})
    if bias:
        biases = [parameters.full(f"{name.removesuffix('weight')}bias") for name in tensors.outputs]
        # Joined when the file is loaded: in the file each is the checkpoint's own.
        operands.append(biases[0] if alone else builder.node("Concat", biases, f"{place}.bias", {"axis": 0}))
    whole = builder.node("Gemm", operands, place, {"transB": 0})
    if alone:
        return whole
    names = tuple(f"{name.removesuffix('.weight')}.linear" for name in tensors.outputs)
    index = list(tensors.outputs).index(matrix.name)
    return Part(whole, place.removesuffix(".linear"), names, tuple(tensors.outputs.values()), index, axis=1)


def in_type(builder: GraphBuilder, scales: ir.Value, dtype: ir.DataType, name: str) -> ir.Value:
    """Scales of an initializer in another type, which are cast once, when the file is loaded."""
    return scales if scales.dtype == dtype else builder.node("Cast", [scales], name, {"to": int(dtype)})
