"""From aten to the ONNX dialect: one small function per operator that a decoder uses, and nothing else.

The two operators of our own become TensorScatter and RotaryEmbedding; an operator that is not in the table is refused
by name. Meanings are those of ONNX opset 24, https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from blockexport.export.graph.quantised_product import Part, quantised_product
from blockexport.export.graph.stamp import Stamp

aten = torch.ops.aten
_WHOLE_AXIS = 2**63 - 1

_ASIDE = (aten.sym_size.int, aten._assert_tensor_metadata.default)
"""What computes nothing: sizes are read where they are used, and types are what the trace says."""

Handler = Callable[[Stamp, torch.fx.Node], ir.Value | Part]
_HANDLERS: dict[Any, Handler] = {}


def _translates(*targets: Any) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(targets, handler))
        return handler

    return register


def translate(stamp: Stamp) -> list[ir.Value]:
    """Every node of the stamp's fragment; returns the fragment's outputs."""
    for node in stamp.fragment.graph.nodes:
        if node.op == "call_function" and node.target not in _ASIDE:
            handler = _HANDLERS.get(node.target)
            if handler is None:
                raise NotImplementedError(f"no ONNX translation of {node.target} (in {stamp.place(node)})")
            stamp.values[node.name] = handler(stamp, node)
    output = next(node for node in stamp.fragment.graph.nodes if node.op == "output")
    return [stamp.value(item) for item in output.args[0]]


def _args(node: torch.fx.Node) -> tuple[Any, ...]:
    """A node's arguments; which type each has is fixed by the operator's schema and not known to the type checker."""
    return node.args


@_translates(aten.linear.default)
def _linear(stamp: Stamp, node: torch.fx.Node) -> ir.Value | Part:
    x, weight, *bias = _args(node)
    matrix = stamp.quantised(weight)
    if matrix is None:
        # Weights stay [out, in] as in the checkpoint: transB reads them so.
        return stamp.emit(node, "Gemm", [stamp.value(arg) for arg in _args(node)], transB=1)
    dtype, place, inputs = stamp.dtype(node), stamp.place(node), stamp.value(x)
    return quantised_product(stamp.builder, stamp.parameters, matrix, inputs, dtype, bias=bool(bias), place=place)


@_translates(aten.rms_norm.default)
def _rms_norm(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    x, _, weight, eps = _args(node)
    # stash_type 1: the mean of squares is taken in float32 whatever the input's type.
    return stamp.emit(
        node, "RMSNormalization", [stamp.value(x), stamp.value(weight)], axis=-1, epsilon=eps, stash_type=1
    )


@_translates(aten.layer_norm.default)
def _layer_norm(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    x, (size,), weight, bias, eps = (*_args(node), None, None, 1e-5)[:5]
    dtype, single = stamp.dtype(node), ir.DataType.FLOAT

    def wide(value: ir.Value, suffix: str) -> ir.Value:
        # TensorRT takes the statistics in the type of the input, whatever stash_type says.
        return value if dtype == single else stamp.emit(node, "Cast", [value], suffix, to=int(single))

    # The operator cannot do without a gain.
    gain = stamp.ones(size) if weight is None else wide(stamp.value(weight), ".gain")
    biases = [] if bias is None else [wide(stamp.value(bias), ".bias")]
    inputs = [wide(stamp.value(x), ".widened"), gain, *biases]
    normed = stamp.emit(node, "LayerNormalization", inputs, axis=-1, epsilon=eps, stash_type=1)
    return normed if dtype == single else stamp.emit(node, "Cast", [normed], ".narrowed", to=int(dtype))


@_translates(aten.embedding.default)
def _embedding(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    table, ids = _args(node)
    matrix = stamp.quantised(table)
    if matrix is None:
        return stamp.emit(node, "Gather", [stamp.value(table), stamp.value(ids)], axis=0)
    # Rows are looked up before they are dequantised: the other way round, ONNX Runtime dequantises the whole table at
    # every call.
    assert matrix.zero_points is None and matrix.order is None, "no embedding has them"
    rows = stamp.emit(node, "Gather", [matrix.codes, stamp.value(ids)], ".codes", axis=0)
    steps = stamp.emit(node, "Gather", [matrix.scales, stamp.value(ids)], ".scales", axis=0)
    if matrix.scales.dtype != stamp.dtype(node):
        steps = stamp.emit(node, "Cast", [steps], ".scales.widened", to=int(stamp.dtype(node)))
    last = node.meta["val"].ndim - 1
    return stamp.emit(node, "DequantizeLinear", [rows, steps], axis=last, block_size=matrix.scheme.block_size)


@_translates(torch.ops.blockexport.cache_write.default)
def _cache_write(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    return stamp.emit(node, "TensorScatter", [stamp.value(arg) for arg in _args(node)], axis=2, mode="linear")


@_translates(torch.ops.blockexport.rotary_embedding.default)
def _rotary_embedding(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    heads, table, *_, interleaved = _args(node)
    x, cos, sin, position_ids = (stamp.value(arg) for arg in _args(node)[:4])
    width, turned_dims = heads.meta["val"].shape[-1], 2 * table.meta["val"].shape[-1]
    options = {} if turned_dims == width else {"rotary_embedding_dim": turned_dims}
    # The tables are float32 and share their type with the input, so half precision turns in float32 between casts.
    dtype = stamp.dtype(node)
    if dtype != ir.DataType.FLOAT:
        x = stamp.emit(node, "Cast", [x], ".widened", to=int(ir.DataType.FLOAT))
    turned = stamp.emit(node, "RotaryEmbedding", [x, cos, sin, position_ids], interleaved=int(interleaved), **options)
    if dtype == ir.DataType.FLOAT:
        return turned
    return stamp.emit(node, "Cast", [turned], ".narrowed", to=int(dtype))


@_translates(aten.scaled_dot_product_attention.default)
def _attention(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    query, key, value, mask = _args(node)
    if node.kwargs != {"scale": 1.0, "enable_gqa": True}:
        raise NotImplementedError(f"scaled_dot_product_attention with {node.kwargs}")
    return stamp.emit(node, "Attention", [stamp.value(arg) for arg in (query, key, value, mask)], scale=1.0)


@_translates(torch.ops.blockexport.capped_attention.default)
def _capped_attention(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    *inputs, softcap = _args(node)
    return stamp.emit(node, "Attention", [stamp.value(arg) for arg in inputs], scale=1.0, softcap=softcap)


@_translates(aten.relu.default)
def _relu(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    return stamp.emit(node, "Relu", [stamp.value(_args(node)[0])])


@_translates(aten.gelu.default)
def _gelu(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    approximate = node.kwargs.get("approximate", "none")
    return stamp.emit(node, "Gelu", [stamp.value(_args(node)[0])], approximate=approximate)


@_translates(aten.log.default)
def _log(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    return stamp.emit(node, "Log", [stamp.value(_args(node)[0])])


@_translates(aten.to.dtype)
def _to(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    x = _args(node)[0]
    if stamp.dtype(x) == stamp.dtype(node):
        return stamp.value(x)
    return stamp.emit(node, "Cast", [stamp.value(x)], to=int(stamp.dtype(node)))


@_translates(aten.tanh.default)
def _tanh(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    return stamp.emit(node, "Tanh", [stamp.value(_args(node)[0])])


@_translates(aten.silu.default)
def _silu(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    x = stamp.value(_args(node)[0])
    return stamp.emit(node, "Mul", [x, stamp.emit(node, "Sigmoid", [x], ".sigmoid")])


@_translates(aten.transpose.int)
def _transpose(stamp: Stamp, node: torch.fx.Node) -> ir.Value | Part:
    x, first, second = _args(node)
    order = list(range(x.meta["val"].ndim))
    order[first], order[second] = order[second], order[first]
    if part := stamp.part(x):
        return part.turned(tuple(order), stamp.builder)
    return stamp.emit(node, "Transpose", [stamp.value(x)], perm=tuple(order))


@_translates(aten.view.default, aten.reshape.default)
def _reshape(stamp: Stamp, node: torch.fx.Node) -> ir.Value | Part:
    x, sizes = _args(node)
    part = stamp.part(x)
    if part and len(sizes) == 4:
        heads = part.viewed(sizes[3], stamp.builder, [stamp.size(size) for size in sizes[:2]])
        if heads:
            return heads
    if all(stamp.is_fixed(size) for size in sizes):
        shape = stamp.ints(sizes)
    else:
        pieces = [stamp.ints([size]) if stamp.is_fixed(size) else stamp.size(size) for size in sizes]
        shape = stamp.emit(node, "Concat", pieces, ".shape", axis=0)
    return stamp.emit(node, "Reshape", [stamp.value(x), shape])


@_translates(aten.unsqueeze.default)
def _unsqueeze(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    return stamp.emit(node, "Unsqueeze", [stamp.value(_args(node)[0]), stamp.ints([_args(node)[1]])])


@_translates(aten.select.int)
def _select(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    x, axis, index = _args(node)
    scalar = stamp.builder.constant(index, ir.DataType.INT64)
    return stamp.emit(node, "Gather", [stamp.value(x), scalar], axis=axis)


@_translates(aten.slice.Tensor)
def _slice(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    x, _, start, end = _args(node)
    if (start, end) != (0, _WHOLE_AXIS):
        raise NotImplementedError(f"slice {start}:{end}")
    return stamp.value(x)


@_translates(aten.amax.default)
def _amax(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    x, axes = _args(node)
    return stamp.emit(node, "ReduceMax", [stamp.value(x), stamp.ints(axes)], keepdims=0)


@_translates(aten.sum.dim_IntList)
def _sum(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    x, axes = _args(node)
    return stamp.emit(node, "ReduceSum", [stamp.value(x), stamp.ints(axes)], keepdims=0)


@_translates(aten.linalg_vector_norm.default)
def _vector_norm(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    x, order, axes, keeps = _args(node)
    if order != 2 or not keeps:
        raise NotImplementedError(f"linalg_vector_norm of order {order}, keepdim {keeps}")
    return stamp.emit(node, "ReduceL2", [stamp.value(x), stamp.ints(axes)], keepdims=1)


@_translates(aten.clamp.default)
def _clamp(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    x, lowest = _args(node)
    return stamp.emit(node, "Max", [stamp.value(x), stamp.builder.constant(lowest, stamp.dtype(node))])


@_translates(aten.masked_fill.Scalar)
def _masked_fill(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    x, mask, filling = _args(node)
    return stamp.emit(
        node, "Where", [stamp.value(mask), stamp.builder.constant(filling, stamp.dtype(node)), stamp.value(x)]
    )


@_translates(aten.expand.default)
def _expand(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    x, sizes = _args(node)
    # In aten -1 keeps an axis; in ONNX 1 does, since the shapes are broadcast.
    return stamp.emit(node, "Expand", [stamp.value(x), stamp.ints([max(size, 1) for size in sizes])])


@_translates(aten.gather.default)
def _gather(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    x, axis, indices = _args(node)
    return stamp.emit(node, "GatherElements", [stamp.value(x), stamp.value(indices)], axis=axis)


@_translates(aten.arange.default)
def _arange(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    constant = stamp.builder.constant
    end = stamp.emit(node, "Squeeze", [stamp.size(_args(node)[0])], ".end")
    return stamp.emit(node, "Range", [constant(0, ir.DataType.INT64), end, constant(1, ir.DataType.INT64)])


_BINARY: dict[Any, str] = {
    aten.add.Tensor: "Add",
    aten.sub.Tensor: "Sub",
    aten.mul.Tensor: "Mul",
    aten.div.Tensor: "Div",
    aten.floor_divide.default: "Div",  # of positions, which are not negative
    aten.le.Tensor: "LessOrEqual",
    aten.gt.Tensor: "Greater",
    aten.__and__.Tensor: "And",
}


@_translates(*_BINARY)
def _binary(stamp: Stamp, node: torch.fx.Node) -> ir.Value:
    first, second = _args(node)
    dtype, op_type = stamp.dtype(first), _BINARY[node.target]
    if not isinstance(second, int | float):
        return stamp.emit(node, op_type, [stamp.value(first), stamp.value(second)])
    if float(np.asarray(second).astype(dtype.numpy())) == second or dtype == ir.DataType.FLOAT:
        return stamp.emit(node, op_type, [stamp.value(first), stamp.builder.constant(second, dtype)])
    # aten takes a Python number in float32 beside a half-precision tensor. Rounded to that type first, 1/sqrt(H) would
    # be off on every score alike.
    wide = stamp.emit(node, "Cast", [stamp.value(first)], ".widened", to=int(ir.DataType.FLOAT))
    wide = stamp.emit(node, op_type, [wide, stamp.builder.constant(second, ir.DataType.FLOAT)])
    return stamp.emit(node, "Cast", [wide], ".narrowed", to=int(dtype))
