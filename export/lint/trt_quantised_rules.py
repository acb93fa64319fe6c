"""Rules on quantised weights: codes right before DequantizeLinear, in whole blocks, symmetric, not turned over."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from blockexport.export.bundle.dataflow.cache_flow import CacheFlow
from blockexport.export.bundle.dataflow.flat_graph import FlatNode
from blockexport.export.bundle.dataflow.stored_values import values_of
from blockexport.export.lint.lint_finding import Fate, Trap

_CODES = (onnx.TensorProto.INT4, onnx.TensorProto.INT8)


def looked_up_codes(flow: CacheFlow) -> Iterator[Trap]:
    """Codes that something else than DequantizeLinear reads."""
    for node in flow.graph.nodes:
        codes = flow.graph.constant(node.input(0))
        if node.op_type == "DequantizeLinear" or codes is None or codes.data_type not in _CODES or not codes.dims:
            continue
        yield Trap(
            "looked-up-codes", Fate.LOUD, node.label,
            "it reads quantised codes, which only DequantizeLinear may",
            "Export with --embedding float",
        )  # fmt: skip


def short_blocks(flow: CacheFlow) -> Iterator[Trap]:
    """Blocks that do not divide the axis they lie along. TensorRT takes their size from the shapes alone."""
    for node, codes in _dequantised(flow):
        block, axis = node.integer("block_size", 0), node.integer("axis", 1)
        if not -len(codes.dims) <= axis < len(codes.dims) or block <= 0:
            continue
        size = codes.dims[axis]
        count = -(-size // block)
        if count <= 1 or size % block == 0:
            continue
        taken = size % count == 0
        said = f"and TensorRT takes them for blocks of {size // count}" if taken else "and only whole ones are taken"
        yield Trap(
            "short-block", Fate.SILENT if taken else Fate.LOUD, node.label,
            f"its blocks of {block} do not divide the {size} codes of an output, {said}",
            "Choose another --block-size, or leave the matrix unquantised",
        )  # fmt: skip


def zero_points(flow: CacheFlow) -> Iterator[Trap]:
    """Zero points that are not all zero, or are not known."""
    for node, _ in _dequantised(flow):
        name = node.input(2)
        stored = flow.graph.constant(name)
        if not name or (stored is not None and _is_zero(stored)):
            continue
        yield Trap(
            "zero-point", Fate.LOUD, node.label,
            "its codes have zero points other than 0, and TensorRT has none",
            "Quantise symmetrically",
        )  # fmt: skip


def unfused_codes(flow: CacheFlow) -> Iterator[Trap]:
    """Matrices [N, K] that a product reads transposed. TensorRT builds them; ONNX Runtime widens them at every call."""
    for node, codes in _dequantised(flow):
        if len(codes.dims) != 2 or not node.integer("block_size", 0):
            continue
        weight = node.proto.output[0]
        for reader in flow.graph.readers.get(weight, []):
            if reader.op_type == "Transpose" or (
                reader.op_type == "Gemm" and reader.input(1) == weight and reader.integer("transB", 0)
            ):
                yield Trap(
                    "unfused-codes", Fate.SILENT, node.label,
                    f"{reader.op_type} turns the matrix over once it is dequantised, and so ONNX Runtime fuses it with "
                    "no product and dequantises all of it at every step",
                    "Store the codes as [in, out], in blocks along axis 0, and multiply without transB",
                )  # fmt: skip


def _dequantised(flow: CacheFlow) -> Iterator[tuple[FlatNode, onnx.TensorProto]]:
    """Every DequantizeLinear of constant codes, and the codes."""
    for node in flow.graph.of("DequantizeLinear"):
        codes = flow.graph.constant(node.input(0))
        if codes is not None:
            yield node, codes


def _is_zero(tensor: onnx.TensorProto) -> bool:
    """Whether every value of an initializer is 0; of one in a file of its own, which is not read, it is not known."""
    values = values_of(tensor)
    return values is not None and bool(np.all(values == 0))
