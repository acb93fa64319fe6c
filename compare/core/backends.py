"""Whether a backend's arithmetic is the one the artifact's precision asks for."""

from __future__ import annotations

from dataclasses import dataclass

from blockexport.models.errors import NotJudgedError
from blockexport.models.precision import Precision


@dataclass(frozen=True)
class Arithmetic:
    """`is_target`: each operator runs in its declared type, so rounding is what the target's would be.
    `can_judge`: False where a run says nothing about the artifact. `note` is for the report."""

    is_target: bool
    can_judge: bool
    note: str


def arithmetic_of(backend: str, precision: Precision) -> Arithmetic:
    """What a run of an artifact of `precision` on `backend` proves."""
    if backend in ("tensorrt", "tensorrt-rtx"):
        return Arithmetic(True, True, f"the engine's own kernels on the GPU, matrix products in {precision.dtype_name}")
    if precision is Precision.FP32:
        return Arithmetic(True, True, "every operator in float32")
    if backend == "aoti":
        return Arithmetic(
            False,
            True,
            f"AOTInductor on a CPU stores {precision.dtype_name} and computes what it fuses in float32: judged are the "
            "program, the rounded weights and the cache, and not the rounding of a target that computes in it",
        )
    if backend != "onnxruntime":
        return Arithmetic(True, True, f"PyTorch on the CPU, every operator in {precision.dtype_name}")
    if precision is Precision.FP16:
        return Arithmetic(
            False,
            True,
            "ONNX Runtime on a CPU computes fp16 matrix products, norms, attention in float32: judged are the graph, "
            "the rounded weights and the fp16 cache, and not the rounding of fp16 arithmetic on a target that has it",
        )
    return Arithmetic(
        False,
        False,
        "ONNX Runtime on a CPU has few bf16 kernels, so a bf16 graph cannot be judged with it: "
        "judge it with --backend replay, which runs the graph in PyTorch",
    )


def usual_backend(precision: Precision) -> str:
    """What judges a bundle when no backend is named: the runtime most will ship with, unless it lacks the type."""
    return "replay" if precision is Precision.BF16 else "onnxruntime"


def require_judgeable(backend: str, precision: Precision) -> Arithmetic:
    """The arithmetic of `backend`, where a run proves anything.

    Raises:
        NotJudgedError: it does not, with the reason and the remedy.
    """
    arithmetic = arithmetic_of(backend, precision)
    if not arithmetic.can_judge:
        raise NotJudgedError(arithmetic.note)
    return arithmetic
