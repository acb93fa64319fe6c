"""Bundles on a CUDA GPU, judged by `compare` and run as programs run them: `make test-gpu`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockexport.cli.main import main
from blockexport.models.precision import Precision
from tests.runtime.cpp import cpp_build
from tests.support import shared_path

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
TOLD = ["Once upon a time", "--device", DEVICE, "--max-new-tokens", "30", "--quiet"]
STORY = ", there was a little girl named Lily."


@pytest.fixture(scope="module", params=list(Precision))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu") / str(request.param)
    words = ["onnx", str(shared_path("models/stories260K")), "-o", str(folder), f"--{request.param}"]
    assert main([*words, "--attention", "both", "--no-compare", "--quiet"]) == 0
    return folder


@pytest.mark.parametrize("backend", ["onnxruntime", "onnxruntime-nonpad", "eager"])
def test_it_passes_every_check(bundle: Path, backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["compare", str(bundle), "--backend", backend, "--device", DEVICE, "--json", "--quiet"])
    report = json.loads(capsys.readouterr().out)
    assert code == 0, [check for check in report["checks"] if check["verdict"] != "pass"]


def test_a_package_that_is_compiled_for_the_gpu(judged_stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = judged_stories.with_name("compiled-for-gpu")
    assert main(["redeclare", str(judged_stories), "-M", "256", "-o", str(copy)]) == 0
    assert main(["aoti", str(copy), "--device", DEVICE]) == 0
    assert main(["selftest", str(copy), "--backend", "aoti"]) != 0
    assert "--device cuda" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["onnxruntime", "eager"])
def test_the_text_is_that_of_the_processor(
    judged_stories: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(judged_stories), *TOLD, "--backend", backend]) == 0
    assert capsys.readouterr().out.startswith(STORY)


def test_in_cpp(judged_stories: Path) -> None:
    build = cpp_build.build("onnxruntime", cpp_build.onnxruntime_options(), "chat", "selftest")
    selftest = cpp_build.attempt([str(build / "selftest"), str(judged_stories), "--device", DEVICE])
    assert selftest.returncode == 0, selftest.stderr
    chat = cpp_build.attempt([str(build / "chat"), str(judged_stories), *TOLD])
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout.startswith(STORY)
