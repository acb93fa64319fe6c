"""Rules on quantised weights: TensorRT wants the codes right before DequantizeLinear, in whole blocks."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from blockexport.export.bundle.dataflow.cache_flow import CacheFlow
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
    for node in flow.graph.of("DequantizeLinear"):
        codes, block = flow.graph.constant(node.input(0)), int(node.attribute("block_size", 0))
        if codes is None or not block:
            continue
        size = codes.dims[int(node.attribute("axis", 1))]
        count = -(-size // block)
        if count == 1 or size % block == 0:
            continue
        taken = size % count == 0
        said = f"and TensorRT takes them for blocks of {size // count}" if taken else "and only whole ones are taken"
        yield Trap(
            "short-block", Fate.SILENT if taken else Fate.LOUD, node.label,
            f"its blocks of {block} do not divide the {size} codes of an output, {said}",
            "Choose another --block-size, or leave the matrix unquantised",
        )  # fmt: skip
