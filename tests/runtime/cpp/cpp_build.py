"""Builds of the C++ runtime that several test files share, in build/cpp of the repository, kept between runs."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.support import REPOSITORY, absent

SOURCES = REPOSITORY / "runtime" / "cpp"
BUILDS = REPOSITORY / "build" / "cpp"
REQUIRE = "BLOCKEXPORT_REQUIRE_CPP"
AS_ONE = ["-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0"]
QUICKLY = "-DCMAKE_CXX_FLAGS_RELEASE=-O0"  # optimised as a user has it is the build `onnxruntime`, of test_cpp.py
_JOBS = "2"


def package(name: str) -> Path:
    """The folder of an installed Python package, which is not imported; skips where it is absent."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        absent(f"the Python package {name} is not installed", REQUIRE)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def require_tools() -> None:
    """Skip where C++ cannot be built."""
    for tool in ("cmake", "c++"):
        if shutil.which(tool) is None:
            absent(f"{tool} is not installed", REQUIRE)
    places = ("/usr/include", "/usr/local/include", os.environ.get("NLOHMANN_JSON_INCLUDE_DIR", "/usr/include"))
    if not any(Path(place, "nlohmann", "json.hpp").is_file() for place in places):
        absent("nlohmann-json is not installed (Debian: nlohmann-json3-dev)", REQUIRE)


def onnxruntime_headers() -> Path:
    """The folder of onnxruntime_cxx_api.h; .ci/onnxruntime-headers fetches it where the system has none."""
    places = (
        os.environ.get("ONNXRUNTIME_INCLUDE_DIR", ""),
        "/usr/include/onnxruntime",
        str(REPOSITORY / "build/onnxruntime-headers/usr/include/onnxruntime"),
    )
    for place in places:
        if place and Path(place, "onnxruntime_cxx_api.h").is_file():
            return Path(place)
    absent(
        "ONNX Runtime's C++ headers are not there (.ci/onnxruntime-headers build/onnxruntime-headers fetches them)",
        REQUIRE,
    )
    raise AssertionError


def onnxruntime_library() -> Path:
    """The shared library in the Python wheel."""
    (library,) = package("onnxruntime").glob("capi/libonnxruntime.so.*")
    return library


def onnxruntime_options() -> list[str]:
    """What tells CMake where ONNX Runtime is."""
    return [
        f"-DONNXRUNTIME_INCLUDE_DIR={onnxruntime_headers()}",
        f"-DONNXRUNTIME_LIBRARY={onnxruntime_library()}",
    ]


def build(name: str, options: list[str], *targets: str) -> Path:
    """Configure and build the library with its test programs; returns the build folder. Warnings are errors.

    The sources of a program are compiled as one, which saves reading the headers again for each. That each
    also compiles by itself, as a user has it, is for `test_the_whole_way` in tests/cli/test_cpp.py.
    """
    require_tools()
    folder = BUILDS / name
    folder.mkdir(parents=True, exist_ok=True)
    with (BUILDS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test files run in several processes
        base = ["-DBLOCKEXPORT_WARNINGS_AS_ERRORS=ON", "-DBLOCKEXPORT_BUILD_TESTS=ON", "-DBLOCKEXPORT_BUILD_SAMPLES=ON"]
        base += AS_ONE
        run(["cmake", "-S", str(SOURCES), "-B", str(folder), *base, *options])
        wanted = [word for target in targets for word in ("--target", target)]
        run(["cmake", "--build", str(folder), "-j", _JOBS, *wanted])
    return folder


def run(command: list[str], environment: dict[str, str] | None = None) -> str:
    """Run a command that must succeed; its stdout."""
    done = attempt(command, environment)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def attempt(
    command: list[str], environment: dict[str, str] | None = None, *, clean: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command; with `clean`, in an environment that holds nothing but `environment`."""
    inherited = {} if clean else dict(os.environ)
    return subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, env={**inherited, **(environment or {})}
    )


def request(tool: Path, folder: Path, **content: Any) -> subprocess.CompletedProcess[str]:
    """Have decoder_tool do what `content` says."""
    path = folder / "request.json"
    path.write_text(json.dumps(content))
    return attempt([str(tool), str(path)], {"OMP_NUM_THREADS": "1"})
