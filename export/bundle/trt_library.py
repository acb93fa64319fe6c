"""The installed TensorRT: what an engine of a bundle is built with and run by."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from blockexport.models.errors import NotJudgedError, UsageError

TENSORRT = "tensorrt"
TENSORRT_RTX = "tensorrt-rtx"
TRT_BACKENDS = (TENSORRT, TENSORRT_RTX)
_OLDEST = {TENSORRT: (10, 15), TENSORRT_RTX: (1, 2)}


@dataclass(frozen=True)
class TrtLibrary:
    """One installed backend: its name, its Python module, its version, and the logger that keeps what it says."""

    name: str
    trt: Any
    version: str
    log: Any


@cache
def load_library(name: str) -> TrtLibrary:
    """The installed backend `name`.

    Raises:
        UsageError: there is no such backend, or the installed one is too old.
        NotJudgedError: it is not installed, or its libraries do not load.
    """
    if name not in TRT_BACKENDS:
        raise UsageError(f"no TensorRT backend {name!r}: there are {' and '.join(TRT_BACKENDS)}")
    install = f"pip install {name}"
    try:
        module = importlib.import_module(name.replace("-", "_"))
    except ModuleNotFoundError as error:
        other = "" if name == TENSORRT_RTX else ", or build with --backend tensorrt-rtx, which needs no GPU"
        raise NotJudgedError(f"{name} is not installed here ({error}): {install}{other}") from error
    except (ImportError, OSError) as error:
        raise NotJudgedError(f"{name} is installed and does not load ({error}): {install} --force-reinstall") from error
    oldest = _OLDEST[name]
    if tuple(int(part) for part in module.__version__.split(".")[:2]) < oldest:
        raise UsageError(
            f"{name} {module.__version__} is older than {'.'.join(map(str, oldest))}, the first that updates a cache "
            f"in place: {install} --upgrade"
        )
    return TrtLibrary(name, module, module.__version__, _logger(module))


def ascending(capabilities: Iterable[str]) -> tuple[str, ...]:
    """Compute capabilities in the order of their numbers, so that the order they were asked in makes no difference."""
    return tuple(sorted(capabilities, key=number_of))


def number_of(version: str) -> tuple[int, ...]:
    """The numbers in a version or a compute capability, by which it is compared; other parts are left out."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _logger(trt: Any) -> Any:
    """A logger that keeps errors and prints nothing.

    TensorRT keeps the first logger it is given for the life of the process, so there is one per backend.
    """

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self._errors.append(message.strip())

        def drain(self) -> str:
            """The first error since the last call, which is the cause of those behind it; empty when there is none."""
            first = next(iter(self._errors), "")
            self._errors.clear()
            return first

    return Log()
