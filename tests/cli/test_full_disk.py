"""A disk that is full: one message, exit code 2, and nothing left, whoever writes and whenever it fills up."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from blockexport.cli.main import main
from blockexport.cpp_project import write_project
from blockexport.export import pt2
from blockexport.export.pt2 import export_program
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.interface import Interface
from blockexport.models.precision import Precision

WEIGHTS = 4 * 93_168  # bytes of the preset `tiny` in float32


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    """The program that `--pt2` saves of `tiny`."""
    checkpoint = open_checkpoint("tiny")
    return export_program(checkpoint, Interface(checkpoint.config, Precision.FP32.element, 512))


@pytest.fixture(autouse=True)
def _made_once(program: torch.export.ExportedProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fills the disk is the saving; the program, which takes most of the time, is the same each time."""
    monkeypatch.setattr(pt2, "export_program", lambda *_: program)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A function that gives a disk of so many KiB."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(size: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("mounting needs root")
        return place

    yield mount
    subprocess.run(["umount", str(place)], capture_output=True)


def believe_in_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where another process fills the disk after we have looked."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 40))


def refused(folder: Path, capfd: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["onnx", "tiny", "-o", str(folder / "b"), "--no-compare", "--quiet", *options]) == 2
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert list(folder.iterdir()) == []
    return captured.err


@pytest.mark.parametrize("options", [(), ("--pt2",)])
@pytest.mark.parametrize("size", [100, 700])
def test_it_is_seen_before_anything_is_written(
    size: int, options: tuple[str, ...], disk: Callable[[int], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    if size == 700 and not options:
        pytest.skip("there is room for this one")
    said = refused(disk(size), capfd, *options)
    assert re.search(r" weights in fp32 take [\d.]+ KiB on disk", said)
    assert ("with the program of --pt2" in said) == bool(options)


@pytest.mark.parametrize("size", [8, 100, 404, 420, 600])
def test_it_fills_up_while_it_is_written(
    size: int, disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    believe_in_room(monkeypatch)
    assert "no space was left" in refused(disk(size), capfd, "--pt2")


def test_a_limit_on_the_size_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (WEIGHTS // 2, WEIGHTS + 10_000):  # too small for the weights, and for the program around them
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            said = refused(tmp_path, capfd, "--pt2")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "would be larger than this process or its file system allows" in said


def compile_with(content: bytes) -> Callable[..., None]:
    """In place of the compiler: a package of this content, written as PyTorch writes its archives."""

    def write(program: object, *, package_path: Any) -> None:
        writer = torch._C.PyTorchFileWriter(package_path)
        writer.write_record("content", content, len(content))
        writer.write_end_of_file()

    return write


def linker(*_: object, **__: object) -> None:
    raise RuntimeError("C++ compile error: collect2: fatal error: ld terminated with signal 7 [Bus error]")


@pytest.mark.parametrize(
    ("size", "compiler", "said"),
    [
        (200, None, f"needs {WEIGHTS} bytes"),
        (600, compile_with(b"x" * 900_000), "no space was left for the package in"),
        (600, linker, "another folder for the latter in the variable TORCHINDUCTOR_CACHE_DIR"),
    ],
)
def test_a_package_of_aoti(
    size: int,
    compiler: Any,
    said: str,
    disk: Callable[[int], Path],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    place = disk(450 + size)
    assert main(["onnx", "tiny", "-o", str(place / "b"), "--no-compare", "--quiet"]) == 0
    before = {path.name: path.read_bytes() for path in (place / "b").iterdir()}
    if compiler is not None:
        believe_in_room(monkeypatch)
        monkeypatch.setattr("torch._inductor.aoti_compile_and_package", compiler)
        monkeypatch.setattr("blockexport.export.aoti.trace_whole", lambda *_: None)
    assert main(["aoti", str(place / "b"), "--no-compare", "--quiet"]) == 2
    assert said in capfd.readouterr().err
    assert {path.name: path.read_bytes() for path in (place / "b").iterdir()} == before
    assert [path.name for path in place.iterdir()] == ["b"]


@pytest.mark.full
def test_the_compilers_own_folder_fills_up(
    disk: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["onnx", "tiny", "-o", str(tmp_path / "b"), "--no-compare", "--quiet"]) == 0
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(disk(500)))
    assert main(["aoti", str(tmp_path / "b"), "--no-compare", "--quiet"]) == 2
    assert "its file system has" in capfd.readouterr().err
    believe_in_room(monkeypatch)
    assert main(["aoti", str(tmp_path / "b"), "--no-compare", "--quiet"]) == 2
    assert "no space was left for the package" in capfd.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"b", "disk"}


def test_a_disk_that_may_only_be_read(disk: Callable[[int], Path], capfd: pytest.CaptureFixture[str]) -> None:
    place = disk(4000)
    assert main(["onnx", "tiny", "-o", str(place / "b"), "-M", "64", "--no-compare", "--quiet"]) == 0
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    before = {path.name: path.read_bytes() for path in (place / "b").iterdir()}
    bundle, target = str(place / "b"), ("--backend", "tensorrt-rtx", "--compute-capability", "8.9")
    for arguments in (
        ("onnx", "tiny", "-o", str(place / "new"), "--no-compare"),
        ("onnx", "tiny", "-o", bundle, "--force", "--no-compare"),
        ("redeclare", bundle, "-M", "65"),
        ("trt", bundle, *target),
        ("compare", bundle, "--check", "prefill", "--report", str(place / "report")),
    ):
        capfd.readouterr()
        assert main([*arguments, "--quiet"]) == 2, arguments
        said = capfd.readouterr().err
        assert "Read-only file system" in said and said.count("\n") == 1
    assert main(["verify", bundle, "--quiet"]) == main(["redeclare", bundle, "-M", "64", "--quiet"]) == 0
    assert {path.name: path.read_bytes() for path in (place / "b").iterdir()} == before
    assert [path.name for path in place.iterdir()] == ["b"]


def test_a_cpp_project(disk: Callable[[int], Path]) -> None:
    place = disk(8)  # less than its files need
    with pytest.raises(UsageError, match="no space was left"):
        write_project(place / "new" / "project", ("onnxruntime",))
    assert list(place.iterdir()) == []
