"""Refuse, before TensorRT sees it, an ONNX file that TensorRT is known to misread, to ignore in part, or to crash on;
and tell what ONNX Runtime's CUDA provider has no fast kernel for.

Pure ONNX: no TensorRT is needed. Each rule says what TensorRT does with such a graph, as seen with TensorRT for RTX
1.7.1. Tests build every graph that it takes silently, to show that the rule is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import onnx

from blockexport.export.bundle.dataflow.cache_flow import CacheFlow
from blockexport.export.bundle.dataflow.flat_graph import FlatGraph
from blockexport.export.lint import cuda_attention_rules as cuda
from blockexport.export.lint import trt_attention_rules as attention
from blockexport.export.lint import trt_cache_rules as caches
from blockexport.export.lint import trt_quantised_rules as quantised
from blockexport.export.lint import trt_type_rules as types
from blockexport.export.lint.graph_file import read_graph
from blockexport.export.lint.lint_finding import LintFinding, Trap, gather
from blockexport.export.lint.lint_target import CUDA, TARGETS
from blockexport.models.errors import UsageError

RULES: tuple[Callable[[CacheFlow], Iterator[Trap]], ...] = (
    types.foreign_domain,
    attention.kv_lengths,
    attention.window,
    attention.causal_over_cache,
    attention.scale,
    attention.form,
    caches.stale_reads,
    caches.cache_writes,
    caches.cache_pairs,
    types.half_statistics,
    types.half_rope,
    quantised.looked_up_codes,
    quantised.short_blocks,
    quantised.zero_points,
    quantised.unfused_codes,
)
"""Every rule of TensorRT's on a graph, in the order of the report."""

CUDA_RULES = (cuda.grouped_float32, cuda.mask_width)
"""Those of ONNX Runtime's CUDA provider."""


@dataclass(frozen=True)
class Examination:
    """What is known of a graph.

    Attributes:
        findings: rule by rule; none of the known traps is in the graph where there are none.
        caches: inputs recognised as key/value caches, by name or because their entries reach an output.
    """

    findings: list[LintFinding]
    caches: int


def lint_file(path: Path, target: str = TARGETS[0]) -> Examination:
    """Examine an ONNX file for one of `TARGETS`; its external data is not read.

    Raises:
        UsageError: there is no such target or file, it is not ONNX, or its local functions call themselves.
    """
    if target not in TARGETS:
        raise UsageError(f"--for {target!r} is unknown: there are {', '.join(TARGETS)}")
    return examine(read_graph(path), target)


def examine(model: onnx.ModelProto, target: str = TARGETS[0]) -> Examination:
    """Hold a graph against every rule of a target."""
    flow = CacheFlow(FlatGraph(model, follow_shapes=target == CUDA))
    if target == CUDA:
        return Examination(gather(chain(*(rule(flow) for rule in CUDA_RULES))), len(flow.inputs))
    findings = gather(chain(types.function_names(model), *(rule(flow) for rule in RULES)))
    return Examination(findings, len(flow.inputs))


def require_clean(path: Path) -> None:
    """What has to be clean before a build.

    Raises:
        UsageError: with every finding.
    """
    findings = lint_file(path).findings
    if findings:
        lines = "\n".join(f"  [{finding.rule}] {finding}" for finding in findings)
        raise UsageError(f"{path} is not built, because TensorRT would not run it as written:\n{lines}")
