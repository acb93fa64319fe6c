"""One record makes a backend known to every command, and no record means that nothing is certified."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import blockexport.cli.bench_command
import blockexport.cli.compare_options
import blockexport.cli.options  # noqa: F401 - what they offer is listed when they are imported, and not with ECHO
from blockexport.cli.main import main
from blockexport.compare.judge import JudgeOptions
from blockexport.export.bundle.manifest import GRAPHS
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.precision import Precision
from blockexport.runtime.backends import BACKENDS, Arithmetic, Library, backend_named, everywhere, usual_backend
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.open import open_decoder
from tests.compare.judged import judge
from tests.compare.memory_checkpoint import TINY, eager_model, random_checkpoint
from tests.runtime.echo_decoder import ECHO
from tests.support import REPOSITORY, shared_path

OWN_NAMES = {  # files that spell a backend's name for another thing of that name
    "runtime/backends.py": "the records",
    "export/bundle/trt_library.py": "the two TensorRTs, which the records name",
    "cli/doctor_command.py": "the wheels of ONNX Runtime",
    "export/onnx_export.py": "the same, for the bill of materials",
    "export/triton_repository.py": "a backend of Triton's",
    "cli/main.py": "a command",
    "cpp_project.py": "the wheels that bring a library",
    "compare/core/context.py": "a label of the progress",
    "compare/core/tolerances.py": "a word",
}


@pytest.fixture
def echo() -> Iterator[None]:
    BACKENDS.append(ECHO)
    yield
    BACKENDS.remove(ECHO)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backends") / "b"
    assert main(["onnx", str(shared_path("models/stories260K")), "-o", str(folder), "-M", "48", "--quiet"]) == 0
    return folder


@pytest.mark.usefixtures("echo")
def test_a_record_and_a_file_are_a_backend(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["compare", str(bundle), "--backend", "echo", "--check", "decode", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["artifact"]["arithmetic"]["note"] == "an echo of eager PyTorch, every operator in float32"
    assert main(["selftest", str(bundle), "--backend", "echo"]) == 0
    assert "golden positions on echo: passed" in capsys.readouterr().out
    assert main(["compare", str(bundle), "--backend", "echo", "--locate"]) == 2
    assert "echo runs none" in capsys.readouterr().err
    assert main(["doctor", "--json"]) == 0
    found = {one["name"]: one["value"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["--backend echo"] == "installed, runs on cpu"
    assert main(["generate", str(bundle), "Once", "--backend", "echo", "--max-new-tokens", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["backend"] == "echo"


def test_what_nobody_listed_is_not_certified(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = random_checkpoint(TINY)
    with pytest.raises(UsageError, match="no backend 'echo': there are onnxruntime"):
        judge(EagerDecoder(eager_model(checkpoint), 8), checkpoint, JudgeOptions(backend="echo"))
    for command in ("compare", "selftest", "generate"):
        words = ["Once"] if command == "generate" else []
        assert main([command, str(bundle), *words, "--backend", "echo"]) == 2
        assert "no backend 'echo'" in capsys.readouterr().err


@pytest.mark.parametrize("silent", Precision)
def test_a_record_without_a_statement_on_arithmetic_cannot_be_made(silent: Precision) -> None:
    said = {one: entry for one, entry in everywhere(True, "said of {}").items() if one is not silent}
    with pytest.raises(ValueError, match=f"says nothing of its arithmetic in {silent}"):
        replace(ECHO, arithmetic=said)
    with pytest.raises(ValueError, match="says nothing"):
        replace(ECHO, arithmetic={**said, silent: Arithmetic(True, True, "")})


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from blockexport.cli.doctor_command import examine

    monkeypatch.setattr("blockexport.cli.doctor_command.BACKENDS", [replace(ECHO, library=Library("echo", "echo-lib"))])
    found = next(one for one in examine(tmp_path) if one.name == "--backend echo")
    assert (found.state, found.remedy) == ("note", "pip install echo-lib")


def test_each_precision_has_one_usual_judge() -> None:
    for precision, graph in itertools.product(Precision, GRAPHS):
        assert sum(precision in one.judges and one.graph == graph for one in BACKENDS) == 1
        assert backend_named(usual_backend(precision, graph)).arithmetic[precision].can_judge


@pytest.mark.parametrize("command", ["compare", "selftest", "generate", "bench", "serve", "aoti"])
def test_a_gpu_that_is_not_there_is_said_at_once(
    command: str, bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = [command, str(bundle), *(["Once"] if command == "generate" else [])]
    for device, said in (
        ("cuda:1", "--device cuda:1: there is no GPU that torch can use (torch is a C"),
        ("gpu", "--device 'gpu' is no device: give cpu, cuda or cuda:N"),
        ("cpu:0", "is no device"),
    ):
        assert main([*words, "--device", device]) == 2
        assert said in capsys.readouterr().err


def test_a_backend_without_a_gpu_refuses_one(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert main(["selftest", str(bundle), "--backend", "replay", "--device", "cuda"]) == 2
    assert "--backend replay does not run on cuda:0, which onnxruntime, " in capsys.readouterr().err
    assert main(["selftest", str(bundle), "--device", "cuda:1"]) == 2
    assert "this machine has 1 of them" in capsys.readouterr().err
    if "CUDAExecutionProvider" not in importlib.import_module("onnxruntime").get_available_providers():
        assert main(["selftest", str(bundle), "--device", "cuda"]) == 2
        assert "this build has no CUDA provider" in capsys.readouterr().err


def test_no_other_file_spells_a_backends_name() -> None:
    names = {backend.name for backend in BACKENDS}
    spelt = {
        str(path.relative_to(REPOSITORY))
        for room in ("models", "export", "runtime", "compare", "cli")
        for path in (*(REPOSITORY / room).rglob("*.py"), *REPOSITORY.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert spelt == set(OWN_NAMES)


def test_what_does_not_run_on_a_gpu(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("blockexport.runtime.compute_device.ComputeDevice._require", lambda self: None)
    assert main(["compare", str(bundle), "--backend", "replay", "--device", "cuda"]) == 2
    assert "--backend replay does not run on cuda:0, which onnxruntime, " in capsys.readouterr().err
    assert main(["serve", str(bundle), "--ray", "local", "--device", "cuda"]) == 2
    assert "--device cuda does not go with --ray" in capsys.readouterr().err
    quantised = bundle.parent / "int8"
    assert main(["onnx", "tiny", "-o", str(quantised), "-M", "32", "--quantize", "int8", "--no-compare", "-q"]) == 0
    assert main(["selftest", str(quantised), "--device", "cuda"]) in (2, 3)
    with pytest.raises(NotJudgedError, match="no CUDA kernel for the rows of an embedding in int8: export with --emb"):
        open_decoder(quantised, device="cuda")
    masked, older = (
        bundle.parent / "both",
        "ONNX Runtime 1.27.3 does not run attention without a mask on cuda:0, which needs 1.28 or",
    )
    assert main(["onnx", "tiny", "-o", str(masked), "-M", "32", "--attention", "both", "--no-compare", "-q"]) == 0
    monkeypatch.setattr("blockexport.runtime.onnx_session.ort.__version__", "1.27.3")
    assert main(["compare", str(masked), "--backend", "onnxruntime-nonpad", "--device", "cuda"]) == 3
    assert older in capsys.readouterr().err
