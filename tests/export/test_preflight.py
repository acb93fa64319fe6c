"""A model that does not fit this machine is refused with the numbers, before anything is made."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

from blockexport.cli.main import main
from blockexport.export import preflight
from blockexport.export.preflight import available_memory, check_room
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.families.every_family import PRESETS
from blockexport.models.interface import Interface
from blockexport.models.precision import Precision
from tests.small_models import small_config, small_weights, write_folder
from tests.support import shared_path

GB = 10**9
TARGET = ("--backend", "tensorrt-rtx", "--compute-capability", "8.9")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with as much memory and disk as the test says."""
    made = SimpleNamespace(memory=1000 * GB, disk=1000 * GB)
    monkeypatch.setattr(preflight, "available_memory", lambda: made.memory)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=made.disk))
    return made


def _interface(checkpoint: Checkpoint, precision: Precision = Precision.FP32) -> Interface:
    return Interface(checkpoint.config, precision.element, 64)


def _check(place: Path, precision: Precision = Precision.FP32, *, judged: bool = True) -> str | None:
    checkpoint = RandomCheckpoint(PRESETS["llama-3-8b"].config, 0, "llama-3-8b")
    return check_room(checkpoint, _interface(checkpoint, precision), place / "new" / "bundle", judged=judged)


def test_the_numbers_of_a_large_model_are_told(machine: SimpleNamespace, tmp_path: Path) -> None:
    assert _check(tmp_path) == (
        "8.03 billion weights in fp32 take 29.92 GiB on disk, and at least 59.83 GiB of memory to judge"
    )
    assert _check(tmp_path, Precision.BF16) == (
        "8.03 billion weights in bf16 take 14.96 GiB on disk, and at least 14.96 GiB of memory to judge"
    )
    assert _check(tmp_path, judged=False) == "8.03 billion weights in fp32 take 29.92 GiB on disk"
    tiny = RandomCheckpoint(PRESETS["tiny"].config, 0, "tiny")
    assert check_room(tiny, _interface(tiny), tmp_path / "b", judged=True) is None


def test_too_little_memory_is_refused_unless_nothing_is_judged(machine: SimpleNamespace, tmp_path: Path) -> None:
    machine.memory = 64 * GB
    with pytest.raises(NotJudgedError, match=r"at least 59\.83 GiB of memory to judge, and 59\.6 GiB are available"):
        _check(tmp_path)
    assert _check(tmp_path, judged=False) is not None
    machine.memory = None
    assert _check(tmp_path) is not None


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        (32 * GB, r"at least 59\.83 GiB of memory to judge, and --max-memory allows 29\.8 GiB"),
        (70 * GB, None),
        (200 * GB, "and 46.57 GiB are available"),
    ],
)
def test_memory_that_may_be_taken(memory: int, said: str | None, machine: SimpleNamespace, tmp_path: Path) -> None:
    checkpoint = RandomCheckpoint(PRESETS["llama-3-8b"].config, 0, "llama-3-8b")
    machine.memory = 100 * GB if memory < 100 * GB else 50 * GB
    limits = nullcontext() if said is None else pytest.raises(NotJudgedError, match=said)
    with limits:
        check_room(checkpoint, _interface(checkpoint), tmp_path / "b", judged=True, max_memory=memory)


def test_tables_of_claimed_positions(machine: SimpleNamespace, tmp_path: Path) -> None:
    """A config of a few bytes can ask for tables of any size, judged or not."""
    checkpoint = RandomCheckpoint(small_config(max_position_embeddings=10**9), 0, "small")
    turned = checkpoint.config.turned_dims
    machine.memory = 3 * 4 * turned * 10**9 - 1
    with pytest.raises(NotJudgedError, match=r"1,000,000,000 positions take .* of memory to make, and .* available"):
        check_room(checkpoint, _interface(checkpoint), tmp_path / "b", judged=False)
    machine.memory += 1
    check_room(checkpoint, _interface(checkpoint), tmp_path / "b", judged=False)


def test_commands_say_what_they_need(
    judged_stories: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stories, out, file = str(shared_path("models/stories260K")), str(tmp_path / "b"), str(tmp_path / "model.onnx")
    # Copied: other tests have links to the bundle's files, and onnx reads no weights that have several names.
    copied = shutil.copytree(judged_stories, tmp_path_factory.mktemp("copied") / "bundle")
    onnx.save(onnx.load(copied / "model.onnx"), file)  # as another tool's
    cases = {
        ("onnx", "tiny", "-o", out): "take at least 727.88 KiB of memory to judge",
        ("compare", str(judged_stories)): "weights in fp32 take at least 1",
        (
            "compare",
            "--onnx",
            file,
            "--model",
            stories,
        ): "weights in fp32 take at least 1",
        ("aoti", str(judged_stories)): "to compile a package of",
        ("aoti", "tiny", "-o", out): "of memory to judge",
        ("trt", str(judged_stories), *TARGET): "to build an engine from",
        ("trt", "tiny", "-o", out, "--fp16", *TARGET): "of memory to judge",
    }
    for arguments, needed in cases.items():
        assert main([*arguments, "--max-memory", "100KB"]) == 3, arguments
        said = capsys.readouterr().err
        assert needed in said and "and --max-memory allows 97.66 KiB" in said
        assert main([*arguments, "--max-memory", "much"]) == 2
        assert "--max-memory 'much' is no size above zero: write it as 24GB or 22.5GiB" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_too_small_a_disk_is_refused(machine: SimpleNamespace, tmp_path: Path) -> None:
    machine.disk = 32 * GB
    with pytest.raises(UsageError, match=r"take 29\.92 GiB on disk, and the file system of .* has 29\.8 GiB free"):
        _check(tmp_path, judged=False)


def test_weights_that_are_mapped_need_no_second_copy(machine: SimpleNamespace, tmp_path: Path) -> None:
    config = small_config()
    checkpoint = open_checkpoint(str(write_folder(tmp_path / "model", config, small_weights(config))))
    size = sum(entry.size for entry in checkpoint.entries.values()) * 4
    machine.memory, machine.disk = size, 0
    assert check_room(checkpoint, _interface(checkpoint), tmp_path / "b", judged=True) is None
    machine.memory = size - 1
    with pytest.raises(NotJudgedError):
        check_room(checkpoint, _interface(checkpoint), tmp_path / "b", judged=True)


def test_a_limit_of_the_control_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    5000 kB\n")
    monkeypatch.setattr(preflight, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(preflight, "_CGROUP", tmp_path)
    assert available_memory() == 5000 * 1024
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory() == 5000 * 1024
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\nactive_file 200\n")
    assert available_memory() == 2500
    (tmp_path / "meminfo").unlink()
    assert available_memory() is None


def test_the_command_begins_nothing(
    machine: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.memory = 8 * GB
    assert main(["onnx", "llama-3-8b", "-o", str(tmp_path / "bundle")]) == 3
    assert "59.83 GiB" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
