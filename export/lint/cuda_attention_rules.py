"""Rules on the Attention operator in ONNX Runtime's CUDA provider: which kernel a graph gets, and what that costs.

With a mask it never takes Flash. In float16 and bfloat16 it takes its memory-efficient kernel instead; what that one
refuses goes through an unfused path, which stores the scores of all queries with all slots. Read off onnxruntime-gpu
1.31's own log.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from blockexport.export.bundle.dataflow.cache_flow import CacheFlow
from blockexport.export.lint.lint_finding import Fate, Trap
from blockexport.models.attention_forms import AttentionForms

_Q, _K, _MASK = 0, 1, 3  # inputs of Attention
_ALIGNED = 4  # the memory-efficient kernel wants a multiple of so many slots in a mask


def grouped_float32(flow: CacheFlow) -> Iterator[Trap]:
    """Grouped heads in float32, for which there is no fused kernel."""
    for node in flow.graph.of("Attention"):
        queries, keys = (flow.graph.length(node.input(index), 1) for index in (_Q, _K))
        single = flow.graph.type_of(node.input(_K)) == onnx.TensorProto.FLOAT
        if single and queries is not None and keys is not None and keys < queries:
            yield Trap(
                "grouped-float32", Fate.SLOW, node.label,
                f"{queries} query heads share {keys} key/value heads in float32, which no fused kernel takes: keys and "
                "values are copied out to every query head at each step, and the scores are stored",
                "Export with --fp16 or --bf16",
            )  # fmt: skip


def mask_width(flow: CacheFlow) -> Iterator[Trap]:
    """A mask of a width that the memory-efficient kernel refuses."""
    for node in flow.graph.of("Attention"):
        slots = flow.graph.length(node.input(_K), -2)
        if node.input(_MASK) and slots is not None and slots % _ALIGNED:
            yield Trap(
                "mask-width", Fate.SLOW, node.label,
                f"its mask is over {slots} slots, no multiple of {_ALIGNED}, which no fused kernel takes",
                f"Export with -M of a multiple of {_ALIGNED}, or with --attention {AttentionForms.NONPAD}",
            )  # fmt: skip
