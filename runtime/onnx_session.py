"""ONNX Runtime, as every part of the project uses it: without telemetry, told of errors once, its refusals sorted.

Its builds report each session to its maker. The variable that forbids it is read when the library is loaded, so the
library is imported here only, behind it; a process that loaded it earlier is covered by the call.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from blockexport.models.element_types import element_of
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.regular_file import require_utf8
from blockexport.runtime.compute_device import CPU, ComputeDevice
from blockexport.runtime.decoder import require_shape
from blockexport.runtime.threads import most_threads

__all__ = [
    "bind",
    "open_cuda_session",
    "open_session",
    "ort",
    "require_shapes",
    "run_options",
    "session_options",
    "version",
]

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

ort.disable_telemetry_events()

CUDA_GRAPHS = "BLOCKEXPORT_CUDA_GRAPHS"  # a variable: 0 leaves them out, to see what they bring
CUDA_PROVIDER = "CUDAExecutionProvider"
GRAPH_ID, NO_GRAPH = "gpu_graph_id", "-1"  # of a run: the CUDA graph that it records or launches, or none

_NO_KERNEL = "Could not find an implementation"
_ALL_OPERATORS = (1, 25)  # the first version with a kernel for TensorScatter in float32

# What ONNX Runtime says where it lacks something that the file needs, rather than the file being wrong.
_LACKS = (
    _NO_KERNEL,
    "is not a registered function/op",
    "is under development",
    "Unsupported model IR version",
)


def session_options(threads: int = 0) -> ort.SessionOptions:
    """Options with `threads` inside an operator (0: as many as PyTorch has), and with errors coming as exceptions
    alone.

    Raises:
        UsageError: more threads than any machine has a use for.

    Threads that wait for work spin between the parts of a run, and sleep between runs: PyTorch has its turn then.
    """
    most = most_threads()
    if not 0 <= threads <= most:
        raise UsageError(f"threads is {threads}, and must be 0 (as many as PyTorch has) to {most} on this machine")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 4
    return options


def run_options(entries: Mapping[str, str]) -> ort.RunOptions:
    """Options of a run."""
    options = ort.RunOptions()
    for key, value in entries.items():
        options.add_run_config_entry(key, value)
    return options


def bind(method: Callable[..., None], name: str, tensor: torch.Tensor, device: ComputeDevice = CPU) -> None:
    """Bind a tensor. The binding holds an address and no reference: the caller keeps the tensor alive over the run."""
    # An ONNX element type names those that NumPy lacks.
    method(name, device.kind, device.index, element_of(tensor.dtype).onnx, tuple(tensor.shape), tensor.data_ptr())


def require_shapes(
    session: ort.InferenceSession,
    binding: ort.IOBinding,
    wanted: Mapping[str, torch.Tensor],
    position_ids_BS: torch.Tensor,
) -> None:
    """Once more, after a run that failed, with outputs that may take any shape: is one of a wrong shape the reason?

    Args:
        session: what failed.
        binding: with what it failed.
        wanted: the outputs that were bound to a tensor, in the order of their binding, before all others.
        position_ids_BS: of the call.

    Raises:
        ArtifactError: it is.
    """
    for name in wanted:
        binding.bind_output(name)
    try:
        session.run_with_iobinding(binding)
    except Exception:  # ONNX Runtime's exceptions share no public base class; the first run's error tells more
        return
    for (name, tensor), value in zip(wanted.items(), binding.get_outputs(), strict=False):
        require_shape(name, value.shape(), tensor.shape, position_ids_BS)


def open_session(
    model: str | bytes,
    options: ort.SessionOptions,
    path: Path,
    remedy: str,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
) -> ort.InferenceSession:
    """A session on the CPU, or on the first of `providers`.

    Args:
        model: the file's path, or its content.
        options: as `session_options` makes them.
        path: the file, for messages.
        remedy: what to do about a file that does not load, as a sentence.
        providers: see there.

    Raises:
        NotJudgedError: this ONNX Runtime lacks an operator, a kernel or a version that the file needs.
        MemoryError: there is not enough.
        UsageError: the file is damaged.
    """
    require_utf8(path)
    try:
        return ort.InferenceSession(model, options, providers=list(providers))
    except Exception as error:  # ONNX Runtime's exceptions share no public base class
        said = " ".join(str(error).split())
        if any(lack in said for lack in _LACKS):
            raise NotJudgedError(
                f"ONNX Runtime {ort.__version__} cannot run {path}: {said}. {_remedy(said, ort.__version__)}"
            ) from error
        if lacks_memory(said):
            raise MemoryError(said) from error
        raise UsageError(f"ONNX Runtime {ort.__version__} does not load {path}: {said}. {remedy}") from error


def open_cuda_session(
    model: str | bytes, options: ort.SessionOptions, path: Path, remedy: str, device: ComputeDevice
) -> tuple[ort.InferenceSession, bool]:
    """A session on a GPU, and whether it can record runs as CUDA graphs: see `open_session`.

    Raises:
        UsageError: also where the CUDA provider is not there or does not load, with the library that is missing.
    """
    if (reason := cuda_missing()) is not None:
        raise UsageError(f"ONNX Runtime {ort.__version__} does not run on {device}: {reason}")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")  # for `onnx_placement.py`
    chosen = {"device_id": str(device.index), "use_tf32": "0"}
    for records in (os.environ.get(CUDA_GRAPHS) != "0", False):
        providers = [(CUDA_PROVIDER, {**chosen, "enable_cuda_graph": str(int(records))})]
        try:
            session = open_session(model, options, path, remedy, providers)
            break
        except UsageError as error:
            if not records or "graph capture" not in str(error):
                raise
    if session.get_providers()[0] != CUDA_PROVIDER:
        raise UsageError(f"ONNX Runtime {ort.__version__} does not run on {device}: its CUDA provider does not start")
    return session, records


@cache
def cuda_missing() -> str | None:
    """Why ONNX Runtime has no CUDA provider, with the remedy; None where it loads."""
    if CUDA_PROVIDER not in ort.get_available_providers():
        return "this build has no CUDA provider. pip uninstall -y onnxruntime, then pip install onnxruntime-gpu"
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find
        ort.preload_dlls()  # those of the wheels that NVIDIA makes, and of PyTorch
    folder = Path(ort.__file__).parent / "capi"
    try:
        ctypes.CDLL(str(folder / "libonnxruntime_providers_shared.so"), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / "libonnxruntime_providers_cuda.so"))
    except OSError as error:
        return f"its CUDA provider does not load ({error}). Install what that library belongs to, of the same CUDA"
    return None


def lacks_memory(said: str) -> bool:
    """Whether an error of ONNX Runtime's is about memory that it did not get."""
    return any(words in said.lower() for words in ("failed to allocate", "bad_alloc", "bad allocation"))


def version(of: str = "") -> tuple[int, ...]:
    """Major and minor of ONNX Runtime, or of one that is called so, to be compared with what something needs."""
    return tuple(map(int, (of or ort.__version__).split(".")[:2]))


def _remedy(said: str, here: str) -> str:
    """A kernel that is missing where the operators are known is missing for its type: bfloat16 on a CPU."""
    if _NO_KERNEL in said and version(here) >= _ALL_OPERATORS:
        return (
            "This version knows the operators of a bundle, and has no CPU kernel of this one for the graph's type. Use "
            "--backend replay, which computes a bundle node by node in PyTorch, or a file in another precision"
        )
    return "Use a newer one (pip install --upgrade onnxruntime), or another --backend"
