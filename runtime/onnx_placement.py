"""What ONNX Runtime's CUDA provider makes of a graph: where nodes run, and which attention kernel a call takes."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from blockexport.runtime.onnx_session import CUDA_PROVIDER, ort

_KERNEL = re.compile(r"Attention: using ([\w ]+?)(?: Attention| path)? \(")
_VERBOSE, _WARNINGS = 0, 2  # severities of a log; the second is what ONNX Runtime begins with
_STDERR = 2


@dataclass(frozen=True)
class Placement:
    """Where a graph runs.

    Attributes:
        kernels: of attention, for each kind of call those that ONNX Runtime's log names.
        on_gpu: how many nodes run there.
        elsewhere: the others, as operator and name.
    """

    kernels: dict[str, list[str]]
    on_gpu: int
    elsewhere: list[tuple[str, str]]


def placement(session: ort.InferenceSession, calls: dict[str, Callable[[], object]]) -> Placement | None:
    """Where the nodes of a session run that `open_cuda_session` made, and the attention kernels of some calls; None
    where this ONNX Runtime does not tell."""
    if not hasattr(session._sess, "get_provider_graph_assignment_info"):
        return None
    parts = session._sess.get_provider_graph_assignment_info()
    placed = [(part.ep_name == CUDA_PROVIDER, node.op_type, node.name) for part in parts for node in part.get_nodes()]
    elsewhere = [(op_type, name) for there, op_type, name in placed if not there]
    kernels = {what: attention_kernels(log_of(call)) for what, call in calls.items()}
    return Placement(kernels, len(placed) - len(elsewhere), elsewhere)


def attention_kernels(log: str) -> list[str]:
    """Those that a verbose log of ONNX Runtime names, each once."""
    return sorted(set(_KERNEL.findall(log)))


def log_of(call: Callable[[], object]) -> str:
    """What ONNX Runtime logs during a call. It writes to the process's standard error, and knows no other place."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        kept = os.dup(_STDERR)
        os.dup2(log.fileno(), _STDERR)
        ort.set_default_logger_severity(_VERBOSE)
        try:
            call()
        finally:
            ort.set_default_logger_severity(_WARNINGS)
            os.dup2(kept, _STDERR)
            os.close(kept)
        log.seek(0)
        return log.read().decode(errors="replace")
