"""What ONNX Runtime's CUDA provider makes of a bundle, without a GPU: where nodes go, which attention kernel they get,
and that each step becomes a CUDA graph.

The provider is the one of the wheel onnxruntime-gpu, unpacked and put before the onnxruntime that is installed.
BLOCKEXPORT_WHEELS names a folder that has it; without one, pip fetches it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import onnx
import pytest

from blockexport.export.bundle.manifest import ONNX_FILE
from blockexport.models.attention_forms import AttentionForms
from blockexport.models.precision import Precision
from tests.cuda_stub_run import stub_model
from tests.cuda_stubs import build_stubs, placements
from tests.exported import export, list_file, random_model
from tests.made_once import MadeOnce
from tests.runtime.cpp import cpp_build
from tests.support import REPOSITORY

WHEEL = "onnxruntime-gpu==1.31.1"
SHAPES = {"Concat", "Squeeze", "Add", "Gather", "Slice"}  # of numbers that are computed on the processor anyway

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("gcc") is None or shutil.which("readelf") is None, reason="no gcc and binutils"),
]


@pytest.fixture(scope="module")
def provider(made_once: MadeOnce) -> Path:
    """The folder with onnxruntime-gpu, and the stubs in `stubs`."""

    def make(folder: Path) -> None:
        folder.mkdir()
        wheels = Path(os.environ.get("BLOCKEXPORT_WHEELS", folder / "wheels"))
        if not list(wheels.glob("onnxruntime_gpu-*.whl")):
            asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL, "-d", str(wheels)]
            done = subprocess.run(asked, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"{WHEEL} cannot be had here: {done.stderr.strip()[-200:]}")
        with zipfile.ZipFile(next(wheels.glob("onnxruntime_gpu-*.whl"))) as wheel:
            wheel.extractall(folder)
        build_stubs(folder / "onnxruntime/capi/libonnxruntime_providers_cuda.so", folder / "stubs")

    return made_once.path("onnxruntime-gpu", make)


@pytest.fixture(scope="module", params=list(Precision))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs") / str(request.param)
    export(stub_model(), folder, request.param, slots=32, attention=AttentionForms.BOTH)
    return folder


def _run(provider: Path, bundle: Path, backend: str, capability: str) -> tuple[str, str]:
    variables = {
        "PYTHONPATH": f"{provider}{os.pathsep}{REPOSITORY}",
        "LD_LIBRARY_PATH": str(provider / "stubs"),
        "STUB_CAPABILITY": capability,
    }
    command = [sys.executable, "-P", "-m", "tests.cuda_stub_run", str(bundle), backend]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


@pytest.mark.parametrize("capability", ["80", "90"])
@pytest.mark.parametrize("form", ["", "-nonpad"])
def test_kernel_placement_and_graphs(provider: Path, bundle: Path, form: str, capability: str) -> None:
    told, log = _run(provider, bundle, f"onnxruntime{form}", capability)
    kernels = set(re.findall(r"Attention: using ([\w ]+?) (?:Attention|path) \(", log))
    if bundle.name == "fp32":
        assert kernels == {"unified unfused"}
    else:
        assert kernels == ({"Flash"} if form else {"Memory Efficient"})
    placed = placements(log)
    assert set(placed) == {"CUDA", "CPU"}
    assert set(placed["CPU"]) <= SHAPES and len(placed["CPU"]) < 8 < len(placed["CUDA"])
    assert placed["CUDA"].count("Attention") == 3 and placed["CUDA"].count("TensorScatter") == 6
    assert not [name for name in placed["CUDA"] if name.startswith("Memcpy")]
    # A graph for 8, 16 and 32 slots, and others for other rows; each recorded once, and launched from then on.
    kernel = kernels.pop()
    compared = f"pass: attention in a prompt: {kernel}; attention in a step: {kernel}; "
    assert told.startswith(f"graphs [4, 5, 6] True\nslots 32\n{compared}")
    replays = re.findall(r"Replaying CUDA graph .* cuda_graph_annotation_id (\d+)", log)
    assert sorted(set(replays)) == list("123456")
    assert len(replays) >= 3 * 15 - 6


@pytest.mark.parametrize("bundle", [Precision.FP16], indirect=True)
def test_a_node_that_falls_to_the_processor_is_found(provider: Path, bundle: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    model = onnx.load(broken / ONNX_FILE, load_external_data=False)
    node = next(node for node in model.graph.node if node.op_type == "Sigmoid")
    node.op_type = "Tan"  # which has no kernel for CUDA
    onnx.save(model, broken / ONNX_FILE)
    list_file(broken, ONNX_FILE)
    told, _ = _run(provider, broken, "onnxruntime", "80")
    assert f"fail: on the processor, and computing more than shapes: Tan ({node.name})" in told
    assert "False" in told.partition("\n")[0]  # no CUDA graph either


def test_the_cpp_decoder(provider: Path, tmp_path: Path) -> None:
    """Steps are one graph for each number of slots, caches are copied on the GPU when they grow, and of a prompt the
    last logits come back alone."""
    bundle = tmp_path / "bundle"
    model = random_model(head_dim=16, sliding_window=None, layer_types=(), max_position_embeddings=300)
    export(model, bundle, Precision.FP16, slots=260, attention=AttentionForms.BOTH)
    capi = provider / "onnxruntime/capi"
    options = [
        f"-DONNXRUNTIME_INCLUDE_DIR={cpp_build.onnxruntime_headers()}",
        f"-DONNXRUNTIME_LIBRARY={next(capi.glob('libonnxruntime.so.*'))}",
    ]
    build = cpp_build.build("onnxruntime-gpu", [*options, cpp_build.QUICKLY], "speed", "chat")
    words = ["--device", "cuda", "--context", "120", "--steps", "20", "--rows", "2"]
    stubs = {"LD_LIBRARY_PATH": str(provider / "stubs"), "STUB_TRACE": "1"}
    for backend in ("onnxruntime", "onnxruntime-nonpad"):
        done = cpp_build.attempt([str(build / "speed"), str(bundle), *words, "--backend", backend], stubs)
        assert done.returncode == 0, done.stderr
        traced = Counter(done.stderr.splitlines())
        assert traced["launched"] == 21  # one step to warm up
        assert traced["copied 2 x 202 from 24240 to 202"] == 2  # logits of 101 tokens
        assert traced["copied 4 x 4096 from 4096 to 8192"] == 6  # 128 slots of 2 rows and 2 heads become 256, 3 layers
    done = cpp_build.attempt([str(build / "chat"), str(bundle), "x", "--device", "cuda"], {"LD_LIBRARY_PATH": ""})
    assert done.returncode == 2
    assert "cannot open shared object file" in done.stderr and "install the CUDA libraries that it names" in done.stderr


def test_a_library_that_is_missing_is_named(provider: Path, bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(provider / "stubs", tmp_path / "stubs")
    (tmp_path / "stubs" / "libcurand.so.10").unlink()
    code = "from blockexport.runtime.onnx_session import cuda_missing; print(cuda_missing())"
    variables = {"PYTHONPATH": str(provider), "LD_LIBRARY_PATH": str(tmp_path / "stubs")}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    assert "libcurand.so.10: cannot open shared object file" in done.stdout, done.stderr
