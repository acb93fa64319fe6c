"""`make test-gpu` ends with one line that cannot be read as success where nothing was tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from blockexport.export.tensorrt import trt_adapter
from blockexport.models.errors import NotJudgedError
from tests.gpu_run import look_at_machine
from tests.support import REPOSITORY

CONFTEST = """
from tests import gpu_run
from tests.conftest import *

gpu_run.look_at_machine = lambda: gpu_run.Machine("NVIDIA Made Up", {"tensorrt-rtx": "1.7"})
"""

PASSES, SKIPS = "def test_a(): pass", "def test_b(): pytest.skip('../shared is not there')"
FAILS, SKIPS_TOO = "def test_c(): assert False", "def test_d(): pytest.skip('../shared is not there')"
ERRS = "def test_e(nothing): pass"
ON = "on NVIDIA Made Up (tensorrt-rtx 1.7)"


def run(folder: Path, *tests: str) -> tuple[int, str]:
    """Exit code and last line of a run on a machine whose GPU is made up."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text("\n".join(["import pytest", *tests]))
    return _pytest(folder, "--import-mode=importlib", "-q", PYTHONPATH=str(REPOSITORY))


def _pytest(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "BLOCKEXPORT_REQUIRE_GPU": "1", "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
    )
    lines = (done.stdout + done.stderr).strip().split("\n")
    return done.returncode, lines[-1]


@pytest.mark.parametrize(
    ("tests", "code", "last"),
    [
        ([PASSES], 0, f"GPU TESTS PASSED {ON}: 1 passed"),
        ([PASSES, SKIPS], 0, f"GPU TESTS PASSED {ON}: 1 passed, 1 skipped (1: ../shared is not there)"),
        ([SKIPS, SKIPS_TOO], 1, f"NOTHING WAS TESTED {ON}: 0 passed, 2 skipped (2: ../shared is not there)"),
        ([], 5, f"NOTHING WAS TESTED {ON}: 0 passed"),
        ([PASSES, FAILS], 1, f"GPU TESTS FAILED {ON}: 1 passed, 1 failed"),
        ([PASSES, ERRS], 1, f"GPU TESTS FAILED {ON}: 1 passed, 1 error"),
        ([PASSES, "def test_f(): raise KeyboardInterrupt"], 2, f"GPU TESTS BROKEN OFF {ON}: 1 passed"),
    ],
)
def test_the_last_line(tests: list[str], code: int, last: str, tmp_path: Path) -> None:
    assert run(tmp_path, *tests) == (code, last)


class Installed:
    """What a run asks of a TensorRT that serves the GPU."""

    version = "1.7"

    def targets(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        return ("8.9",)


def test_what_a_machine_can_test_with(monkeypatch: pytest.MonkeyPatch) -> None:
    served = {"tensorrt-rtx"}

    def load(name: str) -> Installed:
        if name not in served:
            raise NotJudgedError(f"{name} is not installed")
        return Installed()

    monkeypatch.setattr(trt_adapter, "load_backend", load)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("blockexport.runtime.onnx_session.cuda_missing", lambda: "no CUDA provider")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Made Up")
    assert str(look_at_machine()) == ON.removeprefix("on ")
    served.clear()
    with pytest.raises(
        pytest.exit.Exception, match=r"^NEITHER ONNX RUNTIME NOR TENSORRT for NVIDIA Made Up: nothing was tested"
    ) as raised:
        look_at_machine()
    assert raised.value.returncode == 1
    said = "onnxruntime: no CUDA provider. tensorrt: tensorrt is not installed. tensorrt-rtx: tensorrt-rtx is not"
    assert said in str(raised.value)


def test_without_a_gpu_one_line_says_so() -> None:
    code, last = _pytest(REPOSITORY, "-m", "gpu", "tests/runtime/tensorrt/test_trt_gpu.py")
    assert code == 1
    assert "NO GPU: nothing was tested. torch " in last


def test_the_makefile_asks_for_it() -> None:
    recipe = (REPOSITORY / "Makefile").read_text().partition("\ntest-gpu:")[2].partition("\n\n")[0]
    assert "BLOCKEXPORT_REQUIRE_GPU=1 $(BIN)/pytest -m gpu" in recipe
