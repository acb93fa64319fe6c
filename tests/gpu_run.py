"""What a run that requires a GPU (`make test-gpu`) needs before it starts, and the one line that it ends with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

VARIABLE = "BLOCKEXPORT_REQUIRE_GPU"
NOT_RUN = 1
"""Exit code of a run that tested nothing; none that make or a script would take for good."""


@dataclass(frozen=True)
class Machine:
    """The GPU's name, and the version of ONNX Runtime and of each TensorRT that serves it."""

    gpu: str
    backends: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.gpu} ({', '.join(f'{name} {version}' for name, version in self.backends.items())})"


def look_at_machine() -> Machine:
    """The GPU in the machine and what can use it; where there is nothing to test with, the run ends and says so."""
    import torch

    from blockexport.export.bundle.trt_library import TRT_BACKENDS
    from blockexport.export.tensorrt.trt_adapter import load_backend
    from blockexport.models.errors import BlockexportError
    from blockexport.runtime.onnx_session import cuda_missing, ort

    if not torch.cuda.is_available():
        pytest.exit(f"NO GPU: nothing was tested. torch {torch.__version__} sees no CUDA device here", NOT_RUN)
    gpu = torch.cuda.get_device_name()
    versions, reasons = {}, []
    if (reason := cuda_missing()) is None:
        versions["onnxruntime"] = ort.__version__
    else:
        reasons.append(f"onnxruntime: {reason}")
    for name in TRT_BACKENDS:
        try:
            load_backend(name).targets(())
            versions[name] = load_backend(name).version
        except BlockexportError as error:
            reasons.append(f"{name}: {error}")
    if not versions:
        pytest.exit(f"NEITHER ONNX RUNTIME NOR TENSORRT for {gpu}: nothing was tested. {'. '.join(reasons)}", NOT_RUN)
    return Machine(gpu, versions)


def headline(machine: Machine, stats: Mapping[str, Iterable[Any]], exit_code: int) -> tuple[str, int]:
    """The line that says how the run ended, and its exit code.

    Args:
        machine: what was tested on.
        stats: pytest's reports by outcome (`TerminalReporter.stats`).
        exit_code: pytest's own.
    """
    reports = {outcome: [r for r in found if isinstance(r, pytest.TestReport)] for outcome, found in stats.items()}
    counts = {name: len(reports.get(name, ())) for name in ("passed", "failed", "error", "skipped")}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "passed")
    reasons = Counter(_reason(report) for report in reports.get("skipped", ()))
    if reasons:
        told += f" ({'; '.join(f'{count}: {reason}' for reason, count in reasons.most_common())})"
    if counts["failed"] or counts["error"] or exit_code == pytest.ExitCode.TESTS_FAILED:
        return f"GPU TESTS FAILED on {machine}: {told}", exit_code or NOT_RUN
    if exit_code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return f"GPU TESTS BROKEN OFF on {machine}: {told}", exit_code
    if not counts["passed"]:
        return f"NOTHING WAS TESTED on {machine}: {told}", exit_code or NOT_RUN
    return f"GPU TESTS PASSED on {machine}: {told}", exit_code


def _reason(report: pytest.TestReport) -> str:
    """Why a test was skipped, as it said itself."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
