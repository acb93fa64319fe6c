"""A ready C++ project around a bundle: CMake files and the two samples, and where this machine's libraries lie."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from blockexport.export.output.disk import check_parents, disk_errors
from blockexport.models.errors import UsageError

CPP_BACKENDS = ("onnxruntime", "aoti", "tensorrt", "tensorrt-rtx")
PATHS_FILE = "paths.cmake"
_CPP = Path(__file__).resolve().parent / "cpp"
_OPTIONS = {
    "onnxruntime": "BLOCKEXPORT_WITH_ONNXRUNTIME",
    "aoti": "BLOCKEXPORT_WITH_AOTI",
    "tensorrt": "BLOCKEXPORT_WITH_TENSORRT",
    "tensorrt-rtx": "BLOCKEXPORT_WITH_TENSORRT_RTX",
}


def cmake_dir() -> Path:
    """The folder to give CMake as `blockexport_DIR`."""
    return _CPP / "cmake"


def write_project(output: Path, backends: tuple[str, ...], *, force: bool = False) -> list[str]:
    """Write CMakeLists.txt, main.cpp, selftest.cpp and paths.cmake into `output`; returns their names.

    Raises:
        UsageError: an unknown back end, two that exclude each other, or something in the way (`force` overwrites these
            four files and touches no other).
    """
    for backend in backends:
        if backend not in CPP_BACKENDS:
            raise UsageError(f"no back end {backend!r} in C++: there are {', '.join(CPP_BACKENDS)}")
    if {"tensorrt", "tensorrt-rtx"} <= set(backends):
        raise UsageError("tensorrt and tensorrt-rtx have the same symbols and do not fit into one program: choose one")
    if output.exists() and not output.is_dir():
        raise UsageError(f"the output {output} is a file: -o names a folder")
    if output.is_dir() and any(output.iterdir()) and not force:
        raise UsageError(f"the output folder {output} is not empty: name another, or overwrite a project with --force")
    check_parents(output)
    names = ["CMakeLists.txt", "main.cpp", "selftest.cpp"]
    with disk_errors(output):
        output.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(_CPP / "samples" / name, output / name)
        (output / PATHS_FILE).write_text(_paths(backends), encoding="utf-8")
    return [*names, PATHS_FILE]


def _paths(backends: tuple[str, ...]) -> str:
    lines = [
        "# Where blockexport and its libraries lay when `blockexport cpp` made this project; what cmake",
        "# is given with -D goes before it.",
        _cached("blockexport_DIR", cmake_dir(), "PATH"),
    ]
    lines += [
        f'set({option} {"ON" if backend in backends else "OFF"} CACHE BOOL "")' for backend, option in _OPTIONS.items()
    ]
    library = _wheel_library("onnxruntime", "capi/libonnxruntime.so.*")
    if "onnxruntime" in backends and library is not None:
        lines.append(_cached("ONNXRUNTIME_LIBRARY", library, "FILEPATH"))
    torch = _package("torch")
    if "aoti" in backends and torch is not None:
        lines.append(_cached("BLOCKEXPORT_TORCH_DIR", torch, "PATH"))
    rtx = _wheel_library("tensorrt_rtx_libs", "libtensorrt_rtx.so.*")
    if "tensorrt-rtx" in backends and rtx is not None:
        lines.append(_cached("TENSORRT_LIBRARY", rtx, "FILEPATH"))
    return "\n".join(lines) + "\n"


def _cached(name: str, path: Path, kind: str) -> str:
    # A bracket argument: nothing in a path has a meaning there.
    return f'set({name} [==[{path.as_posix()}]==] CACHE {kind} "")'


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent


def _wheel_library(package: str, pattern: str) -> Path | None:
    folder = _package(package)
    found = [] if folder is None else sorted(folder.glob(pattern))
    return found[-1] if found else None
