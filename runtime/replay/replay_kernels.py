"""The operators of a decoder that do arithmetic worth the name, each as ONNX opset 24 defines it.

A result is rounded to the node's own type once, at the end. What happens before that follows the operator: matrix
products and sums accumulate in float32, norm statistics have the type that `stash_type` says.
https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import math

import torch

from blockexport.runtime.replay.replay_call import Call, Kernel, wide


def gemm(call: Call) -> torch.Tensor:
    """`alpha * A' B' + beta * C` with either matrix transposed."""
    a, b, c = call.need(0), call.need(1), call.given(2)
    call.same_type(0, 1, *((2,) if c is not None else ()))
    left = a.T if call.attribute("transA", 0) else a
    right = b.T if call.attribute("transB", 0) else b
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    product = wide(left) @ wide(right)
    if alpha != 1.0:
        product = product * alpha
    if c is not None:
        product = product + (wide(c) if beta == 1.0 else wide(c) * beta)
    return product.to(a.dtype)


def matmul(call: Call) -> torch.Tensor:
    """The product of the last two axes; leading ones broadcast."""
    call.same_type(0, 1)
    return (wide(call.need(0)) @ wide(call.need(1))).to(call.need(0).dtype)


def rms_normalization(call: Call) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + epsilon)` in the type `stash_type`, rounded to the input's type, times the gain."""
    x, scale = call.need(0), call.need(1)
    stash = call.dtype_attribute("stash_type", 1)
    stash = torch.float64 if x.dtype == torch.float64 else stash
    first = int(call.attribute("axis", -1)) % x.ndim
    axes = list(range(first, x.ndim))
    values = x.to(stash)
    mean = wide(values * values).mean(axes, keepdim=True).to(stash)
    epsilon: float = call.attribute("epsilon", 1e-5)
    normalized = values / (mean + epsilon).sqrt()
    return normalized.to(x.dtype) * scale.to(x.dtype)


def layer_normalization(call: Call) -> torch.Tensor:
    """`(x - mean) / sqrt(variance + epsilon)` in the type `stash_type`, rounded to the input's type, times the gain,
    plus the bias."""
    x, scale, bias = call.need(0), call.need(1), call.given(2)
    call.same_type(0, 1, *((2,) if bias is not None else ()))
    stash = call.dtype_attribute("stash_type", 1)
    stash = torch.float64 if x.dtype == torch.float64 else stash
    axes = list(range(int(call.attribute("axis", -1)) % x.ndim, x.ndim))
    centred = x.to(stash) - wide(x.to(stash)).mean(axes, keepdim=True).to(stash)
    variance = wide(centred * centred).mean(axes, keepdim=True).to(stash)
    epsilon: float = call.attribute("epsilon", 1e-5)
    normalized = (centred / (variance + epsilon).sqrt()).to(x.dtype) * scale
    return normalized if bias is None else normalized + bias


def rotary_embedding(call: Call) -> torch.Tensor:
    """Turn pairs of a head's dimensions, of all or of the first `rotary_embedding_dim`: halves, or neighbours where
    `interleaved`."""
    x, cos, sin, positions = call.need(0), call.need(1), call.need(2), call.given(3)
    call.same_type(0, 1, 2)
    if x.ndim != 4:
        raise call.refuse(f"an input of {x.ndim} axes is not implemented (only [B, heads, S, H])")
    turned_dims = int(call.attribute("rotary_embedding_dim", 0)) or x.shape[-1]
    if turned_dims != 2 * cos.shape[-1]:
        said = f"rotary_embedding_dim={turned_dims}"
        raise call.refuse(f"{said} asks for a table of {turned_dims // 2} pairs, and it has {cos.shape[-1]}")
    x, rest = x[..., :turned_dims], x[..., turned_dims:]
    if positions is not None:
        _check_rows(call, positions, cos.shape[0])
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if call.attribute("interleaved", 0):
        first, second = x[..., 0::2], x[..., 1::2]
        turned = torch.stack((cos * first - sin * second, sin * first + cos * second), dim=-1)
        return torch.cat((turned.flatten(-2), rest), dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((cos * first - sin * second, sin * first + cos * second, rest), dim=-1)


def _check_rows(call: Call, positions: torch.Tensor, rows: int) -> None:
    if positions.numel() and not 0 <= int(positions.min()) <= int(positions.max()) < rows:
        raise call.refuse(f"positions {int(positions.min())}..{int(positions.max())} leave its table of {rows} rows")


def tensor_scatter(call: Call) -> torch.Tensor:
    """The cache with each row's update written from its own slot on."""
    past, update, start_B = call.need(0), call.need(1), call.given(2)
    call.same_type(0, 1)
    call.only(mode="linear")
    axis = int(call.attribute("axis", -2)) % past.ndim
    length, slots = update.shape[axis], past.shape[axis]
    if start_B is None:
        start_B = torch.zeros(past.shape[0], dtype=torch.int64)
    present = past.clone()
    for row, start in enumerate(start_B.tolist()):
        if not 0 <= start <= slots - length:
            raise call.refuse(f"a write of {length} entries from slot {start} leaves the cache of {slots}")
        present[row].narrow(axis - 1, start, length).copy_(update[row])
    return present


def attention(call: Call) -> torch.Tensor:
    """Scaled dot product of grouped heads under a mask; a row that may see nothing gives 0.

    Scores and softmax are taken in float32 unless `softmax_precision` names a type: the operator's own text would
    round the scores of a half-precision graph, and no backend does (each has a fused kernel that accumulates wide).
    """
    q, k, v, mask = call.need(0), call.need(1), call.need(2), call.given(3)
    call.same_type(0, 1, 2)
    call.only(is_causal=int(call.given(6) is not None), qk_matmul_output_mode=0)
    if q.ndim != 4 or any(call.given(i) is not None for i in (4, 5)):
        raise call.refuse("only 4-D heads with the whole cache as key and value are implemented")
    if (filled_B := call.given(6)) is not None:
        if mask is not None:
            raise call.refuse("a mask beside nonpad_kv_seqlen is not implemented")
        mask = _filled_before(filled_B, q.shape[2], k.shape[2])
    scale = math.sqrt(call.attribute("scale", q.shape[-1] ** -0.5))
    repeats = q.shape[1] // k.shape[1]
    key, value = (wide(x).repeat_interleave(repeats, dim=1) for x in (k, v))
    scores = (wide(q) * scale) @ (key * scale).transpose(-1, -2)
    cap = call.attribute("softcap", 0.0)
    if cap:
        scores = (scores / cap).tanh() * cap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + wide(mask)
    if call.attribute("softmax_precision", 0):
        scores = scores.to(call.dtype_attribute("softmax_precision", 1))
    weights = scores.softmax(-1)
    seen = torch.isneginf(scores).all(-1, keepdim=True).logical_not()
    return (weights.masked_fill(~seen, 0).to(value.dtype) @ value).to(q.dtype)


def _filled_before(filled_B: torch.Tensor, queries: int, slots: int) -> torch.Tensor:
    """The mask [B, 1, S, M] of `is_causal` where `nonpad_kv_seqlen` is given: the last query sees that many slots, each
    earlier one a slot less."""
    seen_BS = filled_B[:, None] - queries + 1 + torch.arange(queries)
    return torch.arange(slots) < seen_BS[:, None, :, None]


def softmax(call: Call) -> torch.Tensor:
    """In the input's own type, with sums taken wide."""
    x = call.need(0)
    return wide(x).softmax(int(call.attribute("axis", -1))).to(x.dtype)


def reduce_mean(call: Call) -> torch.Tensor:
    """Mean over the axes of the second input (all without one)."""
    x = call.need(0)
    axes = call.ints(1) if call.given(1) is not None else list(range(x.ndim))
    return wide(x).mean(axes, keepdim=bool(call.attribute("keepdims", 1))).to(x.dtype)


def gelu(call: Call) -> torch.Tensor:
    """Exact, or by tanh where `approximate` says so."""
    return torch.nn.functional.gelu(call.need(0), approximate=call.attribute("approximate", "none"))


def dropout(call: Call) -> torch.Tensor:
    """The identity, unless the training flag is set: then entries are zeroed at random and the rest scaled up."""
    ratio, training = call.given(1), call.given(2)
    if training is None or not bool(training):
        return call.need(0)
    return torch.nn.functional.dropout(call.need(0), 0.5 if ratio is None else float(ratio), training=True)


KERNELS: dict[str, Kernel] = {
    "Attention": attention,
    "Dropout": dropout,
    "Gelu": gelu,
    "Gemm": gemm,
    "LayerNormalization": layer_normalization,
    "MatMul": matmul,
    "RMSNormalization": rms_normalization,
    "ReduceMean": reduce_mean,
    "RotaryEmbedding": rotary_embedding,
    "Softmax": softmax,
    "TensorScatter": tensor_scatter,
}
