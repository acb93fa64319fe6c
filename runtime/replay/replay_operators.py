"""The operators that move, compare or combine elements, and the one table of all that the replay knows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from blockexport.runtime.replay.replay_call import Call, Kernel
from blockexport.runtime.replay.replay_kernels import KERNELS


def _binary(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Kernel:
    def kernel(call: Call) -> torch.Tensor:
        call.same_type(0, 1)
        return function(call.need(0), call.need(1))

    return kernel


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Kernel:
    return lambda call: function(call.need(0))


def _divide(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    # Integers divide towards zero.
    return left / right if left.is_floating_point() else torch.div(left, right, rounding_mode="trunc")


def _cast(call: Call) -> torch.Tensor:
    return call.need(0).to(call.dtype_attribute("to", 1))


def _reshape(call: Call) -> torch.Tensor:
    x, sizes = call.need(0), call.ints(1)
    if not call.attribute("allowzero", 0):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return x.reshape(sizes)


def _transpose(call: Call) -> torch.Tensor:
    x = call.need(0)
    return x.permute(*call.attribute("perm", tuple(reversed(range(x.ndim)))))


def _shape(call: Call) -> torch.Tensor:
    sizes = list(call.need(0).shape)
    return torch.tensor(sizes[call.attribute("start", 0) : call.attribute("end", len(sizes))], dtype=torch.int64)


def _concat(call: Call) -> torch.Tensor:
    call.same_type(*range(len(call.inputs)))
    return torch.cat([call.need(i) for i in range(len(call.inputs))], dim=int(call.attribute("axis")))


def _indices(call: Call, axis: int) -> torch.Tensor:
    """The second input as indices into an axis of the first, those that count from its end turned round."""
    indices, size = call.need(1), call.need(0).shape[axis]
    if indices.numel() and not -size <= int(indices.min()) <= int(indices.max()) < size:
        raise call.refuse(f"indices {int(indices.min())}..{int(indices.max())} leave an axis of {size}")
    return torch.where(indices < 0, indices + size, indices)


def _gather(call: Call) -> torch.Tensor:
    x = call.need(0)
    axis = int(call.attribute("axis", 0)) % x.ndim
    indices = _indices(call, axis)
    return x.index_select(axis, indices.reshape(-1)).reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _gather_elements(call: Call) -> torch.Tensor:
    axis = int(call.attribute("axis", 0))
    return call.need(0).gather(axis, _indices(call, axis))


def _reduce(function: Callable[..., torch.Tensor]) -> Kernel:
    """`function(x, axes, keepdim=...)` over given axes."""

    def kernel(call: Call) -> torch.Tensor:
        if call.given(1) is None:
            raise call.refuse("it is implemented over given axes only")
        return function(call.need(0), call.ints(1), keepdim=bool(call.attribute("keepdims", 1)))

    return kernel


def _length(x: torch.Tensor, axes: list[int], *, keepdim: bool) -> torch.Tensor:
    length: torch.Tensor = torch.linalg.vector_norm(x, dim=axes, keepdim=keepdim)
    return length


def _squeeze(call: Call) -> torch.Tensor:
    x = call.need(0)
    return x.squeeze() if call.given(1) is None else x.squeeze(call.ints(1))


def _unsqueeze(call: Call) -> torch.Tensor:
    x, axes = call.need(0), call.ints(1)
    rank = x.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _range(call: Call) -> torch.Tensor:
    call.same_type(0, 1, 2)
    start, limit, delta = (call.need(i).item() for i in range(3))
    return torch.arange(start, limit, delta, dtype=call.need(0).dtype)


def _where(call: Call) -> torch.Tensor:
    call.same_type(1, 2)
    return torch.where(call.need(0), call.need(1), call.need(2))


def _expand(call: Call) -> torch.Tensor:
    sizes = torch.broadcast_shapes(call.need(0).shape, tuple(call.ints(1)))
    return call.need(0).expand(sizes)


def _tile(call: Call) -> torch.Tensor:
    return call.need(0).repeat(*call.ints(1))


def _slice(call: Call) -> torch.Tensor:
    x, starts, ends = call.need(0), call.ints(1), call.ints(2)
    axes = call.ints(3) if call.given(3) is not None else list(range(len(starts)))
    steps = call.ints(4) if call.given(4) is not None else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        kept = torch.arange(x.shape[axis])[slice(start, end)] if step == 1 else None
        if kept is None:
            raise call.refuse(f"a step of {step} is not implemented")
        x = x.index_select(axis, kept)
    return x


def _split(call: Call) -> tuple[torch.Tensor, ...]:
    if call.given(1) is None:
        raise call.refuse("only parts of given sizes are implemented")
    parts: tuple[torch.Tensor, ...] = call.need(0).split(call.ints(1), dim=int(call.attribute("axis", 0)))
    return parts


def _constant(call: Call) -> torch.Tensor:
    value: torch.Tensor = call.attribute("value")
    if value is None:
        raise call.refuse("only a constant given as a tensor is implemented")
    return value


def _constant_of_shape(call: Call) -> torch.Tensor:
    value: torch.Tensor | None = call.attribute("value")
    return torch.zeros(call.ints(0)) if value is None else value.expand(call.ints(0))


def _dequantize_linear(call: Call) -> torch.Tensor:
    """`(codes - zero) * scale` with a scale for each block along an axis, rounded to the scales' type once."""
    codes, scales, zeros = call.need(0), call.need(1), call.given(2)
    block, axis = int(call.attribute("block_size", 0)), int(call.attribute("axis", 1))
    call.only(output_dtype=0)
    if not block:
        raise call.refuse("a scale for a whole tensor or axis is not implemented (only blocks)")
    if -(-codes.shape[axis] // block) != scales.shape[axis]:
        raise call.refuse(f"{codes.shape[axis]} codes in blocks of {block} have {scales.shape[axis]} scales")

    def spread(values: torch.Tensor) -> torch.Tensor:
        return values.float().repeat_interleave(block, dim=axis).narrow(axis, 0, codes.shape[axis])

    values = codes.float() if zeros is None else codes.float() - spread(zeros)
    return (values * spread(scales)).to(scales.dtype)


OPERATORS: dict[str, Kernel] = {
    **KERNELS,
    "Add": _binary(torch.add),
    "And": _binary(torch.logical_and),
    "Cast": _cast,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DequantizeLinear": _dequantize_linear,
    "Div": _binary(_divide),
    "Equal": _binary(torch.eq),
    "Erf": _unary(torch.erf),
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Greater": _binary(torch.gt),
    "GreaterOrEqual": _binary(torch.ge),
    "Identity": _unary(lambda x: x),
    "Less": _binary(torch.lt),
    "LessOrEqual": _binary(torch.le),
    "Log": _unary(torch.log),
    "Max": _binary(torch.maximum),
    "Min": _binary(torch.minimum),
    "Mul": _binary(torch.mul),
    "Neg": _unary(torch.neg),
    "Not": _unary(torch.logical_not),
    "Or": _binary(torch.logical_or),
    "Range": _range,
    "ReduceL2": _reduce(_length),
    "ReduceMax": _reduce(torch.amax),
    "ReduceSum": _reduce(torch.sum),
    "Reciprocal": _unary(torch.reciprocal),
    "Reshape": _reshape,
    "Shape": _shape,
    "Relu": _unary(torch.relu),
    "Sigmoid": _unary(torch.sigmoid),
    "Slice": _slice,
    "Sqrt": _unary(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _binary(torch.sub),
    "Tanh": _unary(torch.tanh),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
"""Every operator of the default domain that can be replayed; half-precision results are rounded once per node."""

WITH_PARTS: dict[str, Callable[[Call], tuple[torch.Tensor, ...]]] = {"Split": _split}
"""Those with several outputs."""
