"""What needs headers that no package index has: TensorRT's backend compiled, and the onnxruntime-genai sample run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blockexport.cli.main import main
from tests.runtime.cpp import cpp_build
from tests.support import shared_path


def header_folder(variable: str, header: str) -> str:
    """The folder that an environment variable names, or a skip that says how to give one."""
    folder = os.environ.get(variable, "")
    if not folder or not Path(folder, header).is_file():
        pytest.skip(f"{variable} names no folder with {header}")
    return folder


def test_tensorrt_rtx_compiles_links_and_starts(judged_stories: Path) -> None:
    """As far as a machine without a driver goes: the first call of CUDA says that there is none."""
    names = {"TENSORRT_INCLUDE_DIR": "NvInferRuntime.h", "CUDART_INCLUDE_DIR": "cuda_runtime_api.h"}
    options = [f"-D{name}={header_folder(name, header)}" for name, header in names.items()]
    cudart = Path(os.environ["CUDART_INCLUDE_DIR"]).parent / "lib"
    (library,) = cpp_build.package("tensorrt_rtx_libs").glob("libtensorrt_rtx.so.*")
    options += [f"-DTENSORRT_LIBRARY={library}", f"-DCUDART_LIBRARY={next(cudart.glob('libcudart.so.*'))}"]
    options += ["-DBLOCKEXPORT_WITH_TENSORRT_RTX=ON", "-DBLOCKEXPORT_WITH_ONNXRUNTIME=OFF"]
    build = cpp_build.build("tensorrt-rtx", options, "selftest")
    done = cpp_build.attempt([str(build / "selftest"), str(judged_stories)])
    assert done.returncode == 2
    assert "CUDA cannot use the GPU" in done.stderr or "holds no tensorrt-rtx engine" in done.stderr


def test_the_sample_of_onnxruntime_genai(tmp_path: Path) -> None:
    headers = header_folder("GENAI_INCLUDE_DIR", "ort_genai.h")
    sources, build = cpp_build.SOURCES / "samples" / "genai", tmp_path / "build"
    libraries = [
        f"-DGENAI_LIBRARY={cpp_build.package('onnxruntime_genai') / 'libonnxruntime-genai.so'}",
        f"-DONNXRUNTIME_LIBRARY={cpp_build.onnxruntime_library()}",
    ]
    flags = ["-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"]
    cpp_build.run(["cmake", "-S", str(sources), "-B", str(build), f"-DGENAI_INCLUDE_DIR={headers}", *libraries, *flags])
    cpp_build.run(["cmake", "--build", str(build)])
    bundle = tmp_path / "bundle"
    template = tmp_path / "model"
    template.mkdir()
    for path in shared_path("models/stories260K").iterdir():
        (template / path.name).write_bytes(path.read_bytes())
    # The sample speaks through a chat template, and this model has none of its own.
    (template / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    assert main(["onnx", str(template), "-o", str(bundle), "--quiet"]) == 0
    done = cpp_build.attempt([str(build / "genai_chat"), str(bundle), "Once upon a time", "20"])
    assert done.returncode == 0, done.stderr
    assert "little girl named Lily" in done.stdout
