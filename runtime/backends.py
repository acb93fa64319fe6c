"""The backends: one record each, which everything that runs or judges a bundle asks.

Adding one is a record here and a file with its decoder. Nothing heavy is imported: a record names its opener.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockexport.export.bundle.file_check import Verify
from blockexport.export.bundle.manifest import AOTI_FILE, GRAPHS, NONPAD_FILE, ONNX_FILE, PT2_FILE, Manifest
from blockexport.export.bundle.trt_library import TENSORRT, TENSORRT_RTX
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.interface import Interface
from blockexport.models.precision import Precision
from blockexport.models.wording import did_you_mean
from blockexport.runtime.compute_device import CPU, CPU_NAME, CUDA_NAME, ComputeDevice

if TYPE_CHECKING:
    from blockexport.runtime.decoder import Decoder


@dataclass(frozen=True)
class Arithmetic:
    """What a run in one precision proves; no member has a default, so that nothing is certified by leaving it out.

    Attributes:
        is_target: each operator runs in its declared type, so rounding is what the target's would be.
        can_judge: False where a run says nothing about the artifact.
        note: why, for the report.
    """

    is_target: bool
    can_judge: bool
    note: str


@dataclass(frozen=True)
class Library:
    """A Python module that a backend needs, and the distribution that brings it; more than one may."""

    module: str
    distribution: str
    alternatives: tuple[str, ...] = ()

    def versions(self) -> dict[str, str]:
        """The versions of those that are installed; nothing is imported."""
        found = {}
        for name in (self.distribution, *self.alternatives):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[name] = importlib.metadata.version(name)
        return found


@dataclass(frozen=True)
class Opening:
    """What is to be opened: see `open_decoder` for the members."""

    backend: str
    folder: Path
    manifest: Manifest
    max_sequence_length: int | None = None
    model: str | None = None
    low_memory: bool = False
    threads: int = 0
    verify: Verify = "sample"
    exact: bool = False
    first_slots: int | None = None
    device: ComputeDevice = CPU

    @property
    def graph(self) -> str:
        """The ONNX file that the backend runs, or what it runs was made from."""
        return backend_named(self.backend).graph or ONNX_FILE

    @property
    def interface(self) -> Interface:
        """The decoder's: the bundle's, with the M that was asked for."""
        made = self.manifest.interface
        return replace(made, max_sequence_length=self.max_sequence_length or made.max_sequence_length)


@dataclass(frozen=True)
class Backend:
    """One way to run a bundle.

    Attributes:
        name: what `--backend` takes.
        opener: dotted path of what makes its decoder of an `Opening`, as `package.module:name`.
        devices: what it runs on, as PyTorch names devices.
        arithmetic: what a run proves, stated for every precision.
        file: the file of the bundle that it runs; None where it runs none, or one that it chooses itself.
        graph: the ONNX file to look into for the place of a difference: what it runs, or what that was built from.
        library: what must be installed beside blockexport's own dependencies.
        judges: precisions in which it judges its graph when no backend is named.
        cmake_option: what switches it on in the C++ library; None where that lacks it.
        is_eager: it is eager PyTorch, which is held against float64 and not against itself.
        rounds_activations: it rounds them to 8 bits before a product by quantised weights, unless told to be exact.
        grows: its cache begins with few slots and doubles as it is filled, unless told to be exact.
        gpu_arithmetic: `arithmetic` on a GPU, of one that also runs on a processor.
        built_slots: its cache has the slots that the artifact was built with, and no others.
    """

    name: str
    opener: str
    devices: tuple[str, ...]
    arithmetic: Mapping[Precision, Arithmetic]
    file: str | None = None
    graph: str | None = None
    library: Library | None = None
    judges: tuple[Precision, ...] = ()
    cmake_option: str | None = None
    is_eager: bool = False
    rounds_activations: bool = False
    grows: bool = False
    gpu_arithmetic: Mapping[Precision, Arithmetic] | None = None
    built_slots: bool = False

    def __post_init__(self) -> None:
        silent = [one for one in Precision if one not in self.arithmetic or not self.arithmetic[one].note]
        if silent:
            raise ValueError(f"the backend {self.name} says nothing of its arithmetic in {', '.join(silent)}")

    def arithmetic_on(self, device: ComputeDevice) -> Mapping[Precision, Arithmetic]:
        """What a run proves on a device."""
        return self.gpu_arithmetic if device.on_gpu and self.gpu_arithmetic is not None else self.arithmetic

    @property
    def runs_onnx(self) -> bool:
        """Whether it runs an ONNX file of the bundle itself."""
        return self.file in GRAPHS

    def files_in(self, manifest: Manifest) -> list[str]:
        """Those of a bundle's files that it may run."""
        if self.file is not None:
            return [self.file]
        return [name for name, entry in manifest.engines.items() if entry.get("backend") == self.name]

    def open(self, wanted: Opening) -> Decoder:
        """The decoder; only now is the backend's own code imported."""
        module, _, function = self.opener.partition(":")
        opener: Callable[[Opening], Decoder] = getattr(importlib.import_module(module), function)
        return opener(wanted)


def everywhere(is_target: bool, note: str) -> dict[Precision, Arithmetic]:
    """The same statement for every precision; `{}` in the note is the type's name."""
    return {one: Arithmetic(is_target, True, note.format(one.element.name)) for one in Precision}


_FLOAT32 = Arithmetic(True, True, "every operator in float32")
_TORCH = {**everywhere(True, "PyTorch on the CPU, every operator in {}"), Precision.FP32: _FLOAT32}
_ENGINE = everywhere(True, "the engine's own kernels on the GPU, matrix products in {}")
_INDUCTOR = (
    "AOTInductor on {} stores {} and computes what it fuses in float32: judged are the program, the rounded weights "
    "and the cache, and not the rounding of a target that computes in it"
)
_TORCH_GPU = everywhere(True, "PyTorch on the GPU, every operator in {}, without TF32")
_ONNX_RUNTIME_GPU = everywhere(True, "ONNX Runtime's CUDA kernels, every operator in {}, without TF32")
_ONNX_RUNTIME = {
    Precision.FP32: _FLOAT32,
    Precision.FP16: Arithmetic(
        False,
        True,
        "ONNX Runtime on a CPU computes fp16 matrix products, norms, attention in float32: judged are the graph, "
        "the rounded weights and the fp16 cache, and not the rounding of fp16 arithmetic on a target that has it",
    ),
    Precision.BF16: Arithmetic(
        False,
        False,
        "ONNX Runtime on a CPU has few bf16 kernels, so a bf16 graph cannot be judged with it: "
        "judge it with --backend replay, which runs the graph in PyTorch",
    ),
}

ONNXRUNTIME = Backend(
    "onnxruntime",
    "blockexport.runtime.onnx_cuda_decoder:open_bundle",
    (CPU_NAME, CUDA_NAME),
    _ONNX_RUNTIME,
    file=ONNX_FILE,
    graph=ONNX_FILE,
    library=Library("onnxruntime", "onnxruntime", ("onnxruntime-gpu",)),
    judges=(Precision.FP32, Precision.FP16),
    cmake_option="BLOCKEXPORT_WITH_ONNXRUNTIME",
    rounds_activations=True,
    grows=True,
    gpu_arithmetic=_ONNX_RUNTIME_GPU,
)
REPLAY = Backend(
    "replay",
    "blockexport.runtime.replay.replay_decoder:open_bundle",
    (CPU_NAME,),
    _TORCH,
    file=ONNX_FILE,
    graph=ONNX_FILE,
    judges=(Precision.BF16,),
)
ONNXRUNTIME_NONPAD, REPLAY_NONPAD = (
    replace(one, name=f"{one.name}-nonpad", file=NONPAD_FILE, graph=NONPAD_FILE) for one in (ONNXRUNTIME, REPLAY)
)
PT2 = Backend(
    "pt2",
    "blockexport.runtime.pt2_decoder:Pt2Decoder",
    (CPU_NAME, CUDA_NAME),
    _TORCH,
    file=PT2_FILE,
    gpu_arithmetic=_TORCH_GPU,
)
AOTI = Backend(
    "aoti",
    "blockexport.runtime.aoti_decoder:AotiDecoder",
    (CPU_NAME, CUDA_NAME),
    {**everywhere(False, _INDUCTOR.format("a CPU", "{}")), Precision.FP32: _FLOAT32},
    file=AOTI_FILE,
    cmake_option="BLOCKEXPORT_WITH_AOTI",
    gpu_arithmetic={**everywhere(False, _INDUCTOR.format("a GPU", "{}")), Precision.FP32: _FLOAT32},
)
EAGER = Backend(
    "eager",
    "blockexport.runtime.eager:open_bundle",
    (CPU_NAME, CUDA_NAME),
    _TORCH,
    is_eager=True,
    gpu_arithmetic=_TORCH_GPU,
)
ENGINES = tuple(
    Backend(
        name,
        "blockexport.runtime.tensorrt.trt_decoder:open_bundle",
        (CUDA_NAME,),
        _ENGINE,
        built_slots=True,
        graph=ONNX_FILE,
        library=Library(module, name),
        cmake_option=f"BLOCKEXPORT_WITH_{module.upper()}",
    )
    for name, module in ((TENSORRT, "tensorrt"), (TENSORRT_RTX, "tensorrt_rtx"))
)

BACKENDS: list[Backend] = [ONNXRUNTIME, REPLAY, ONNXRUNTIME_NONPAD, REPLAY_NONPAD, PT2, AOTI, EAGER, *ENGINES]
"""Every backend, the usual one first."""


def backend_names() -> list[str]:
    """What `--backend` takes."""
    return [backend.name for backend in BACKENDS]


def backend_named(name: str) -> Backend:
    """The record of a backend.

    Raises:
        UsageError: there is none of that name, so nothing is known of it.
    """
    for backend in BACKENDS:
        if backend.name == name:
            return backend
    raise UsageError(
        f"no backend {name!r}{did_you_mean(name, backend_names())}: there are {', '.join(backend_names())}"
    )


def usual_backend(precision: Precision, graph: str = ONNX_FILE) -> str:
    """What judges a graph of a bundle when no backend is named: the runtime most will ship with, unless it lacks the
    type."""
    return next(one.name for one in BACKENDS if precision in one.judges and one.graph == graph)


def require_judgeable(name: str, precision: Precision, device: ComputeDevice = CPU) -> Arithmetic:
    """The arithmetic of a backend on a device, where a run proves anything.

    Raises:
        UsageError: there is no such backend.
        NotJudgedError: it proves nothing, with the reason and the remedy.
    """
    arithmetic = backend_named(name).arithmetic_on(device)[precision]
    if not arithmetic.can_judge:
        raise NotJudgedError(arithmetic.note)
    return arithmetic


def device_for(name: str, device: str) -> ComputeDevice:
    """The device that a backend is to run on.

    Raises:
        UsageError: there is no such backend or device, or the backend does not run there.
    """
    record, wanted = backend_named(name), ComputeDevice.named(device)
    if wanted.on_gpu and CUDA_NAME not in record.devices:
        others = ", ".join(one.name for one in BACKENDS if CUDA_NAME in one.devices)
        raise UsageError(f"--backend {name} does not run on {wanted}, which {others} do")
    return wanted
