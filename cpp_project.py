"""A ready C++ project around a bundle: CMake files and the two samples, and where this machine's libraries lie."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from blockexport.export.bundle.trt_library import TENSORRT_RTX
from blockexport.export.output.atomic_write import write_together
from blockexport.export.output.disk import disk_errors
from blockexport.export.output.place import output_place
from blockexport.models.errors import UsageError
from blockexport.runtime.backends import AOTI, BACKENDS, ENGINES, ONNXRUNTIME

_OPTIONS = {backend.name: backend.cmake_option for backend in BACKENDS if backend.cmake_option is not None}
CPP_BACKENDS = tuple(_OPTIONS)
PATHS_FILE = "paths.cmake"
_SAMPLES = ("CMakeLists.txt", "main.cpp", "selftest.cpp", "speed.cpp")
_DIGEST = re.compile(rb"^# sha256 ([0-9a-f]{64}) (\S+)\n", re.MULTILINE)
_CPP = Path(__file__).resolve().parent / "runtime" / "cpp"


def cmake_dir() -> Path:
    """The folder to give CMake as `blockexport_DIR`."""
    return _CPP / "cmake"


def write_project(
    output: Path, backends: tuple[str, ...], inputs: Iterable[Path] = (), *, force: bool = False
) -> list[str]:
    """Write CMakeLists.txt, main.cpp, selftest.cpp, speed.cpp and paths.cmake into `output`; returns their names.

    Raises:
        UsageError: an unknown backend, two that exclude each other, something in the way, or a place that holds an
            input or lies in one. `force` writes into a folder that is not empty and replaces files of an older project
            that are as they were written.
    """
    for backend in backends:
        if backend not in CPP_BACKENDS:
            raise UsageError(f"no backend {backend!r} in C++: there are {', '.join(CPP_BACKENDS)}")
    engines = [backend.name for backend in ENGINES if backend.name in backends]
    if len(engines) > 1:
        raise UsageError(f"{' and '.join(engines)} have the same symbols and do not fit into one program: choose one")
    place = output_place(output, inputs)
    files = {name: (_CPP / "samples" / name).read_bytes() for name in _SAMPLES}
    files[PATHS_FILE] = _with_digests(_paths(backends), files)
    with disk_errors(output):
        if place.is_dir() and any(place.iterdir()) and not force:
            raise UsageError(
                f"the output folder {output} is not empty: name another, or overwrite a project with --force"
            )
        _require_unchanged(place, files)
        write_together(place, files)
    return list(files)


def _with_digests(paths: str, files: Mapping[str, bytes]) -> bytes:
    """paths.cmake with the digest of every file of the project, by which a later run knows that it is as written."""
    digests = {name: _sha256(content) for name, content in files.items()} | {PATHS_FILE: _sha256(paths.encode())}
    return "".join(f"# sha256 {digest} {name}\n" for name, digest in digests.items()).encode() + paths.encode()


def _require_unchanged(place: Path, names: Iterable[str]) -> None:
    """Refuse to replace what is not, byte for byte, what an earlier run wrote."""
    paths = place / PATHS_FILE
    head = paths.read_bytes() if paths.is_file() else b""
    written = {name.decode(): digest.decode() for digest, name in _DIGEST.findall(head)}
    for name in names:
        path = place / name
        if not os.path.lexists(path):
            continue
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        if name == PATHS_FILE:
            content = _DIGEST.sub(b"", content)
        if written.get(name) != _sha256(content):
            raise UsageError(
                f"{path} is not as `blockexport cpp` wrote it, and --force replaces nothing else: move it away, or "
                "name another folder"
            )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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
    if ONNXRUNTIME.name in backends and library is not None:
        lines.append(_cached("ONNXRUNTIME_LIBRARY", library, "FILEPATH"))
    torch = _package("torch")
    if AOTI.name in backends and torch is not None:
        lines.append(_cached("BLOCKEXPORT_TORCH_DIR", torch, "PATH"))
    rtx = _wheel_library("tensorrt_rtx_libs", "libtensorrt_rtx.so.*")
    if TENSORRT_RTX in backends and rtx is not None:
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
