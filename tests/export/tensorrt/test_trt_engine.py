"""Engines go into a bundle whole or not at all: beside other builds, interrupted, on a full disk, over an older one."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockexport.export.bundle import bundle as bundles
from blockexport.export.bundle.bundle import add_files
from blockexport.export.bundle.engine_entry import engine_name, entry_of
from blockexport.export.bundle.manifest import Manifest, read_manifest, sha256_of, write_manifest
from blockexport.export.output.atomic_write import LOCK, locked, remove_abandoned, rename_together
from blockexport.export.output.hidden_names import partial_path
from blockexport.export.tensorrt.trt_engine import check_sources, place_engine, staged_engine
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from tests.export.tensorrt.made_up_engine import ENGINE, add_made_up_engine, made_up_entry
from tests.exported import export, random_model

NAME = "engines/tensorrt-rtx-sm89-fp16.engine"
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def exported_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    export(random_model(num_hidden_layers=1, layer_types=(), sliding_window=None), folder, Precision.FP16)
    return folder


@pytest.fixture
def bundle(exported_once: Path, tmp_path: Path) -> Path:
    """A bundle that a test may change."""
    shutil.copytree(exported_once, tmp_path / "bundle")
    return tmp_path / "bundle"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_whole(folder: Path, *names: str) -> None:
    """The bundle lists these engines, each with its own bytes, and holds no file that it does not list."""
    manifest = read_manifest(folder)
    assert set(manifest.engines) == set(names)
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {*manifest.files, "manifest.json"}
    for name in names:
        assert sha256_of(folder / name) == manifest.files[name].sha256


def test_an_engine_and_its_entry(bundle: Path) -> None:
    _, returned = add_made_up_engine(bundle)
    assert read_manifest(bundle).files == returned.files
    assert entry_of(read_manifest(bundle), NAME) == entry_of(returned, NAME) == made_up_entry(returned)
    assert_whole(bundle, NAME)
    file = returned.files[NAME]
    assert file.bytes == len(ENGINE)
    assert file.made_from == {
        name: returned.files[name].sha256 for name in ("model.onnx", "model.safetensors", "rope.safetensors")
    }
    assert add_made_up_engine(bundle, content=b"another")[1].files[NAME].bytes == 7
    assert_whole(bundle, NAME)


def _build_beside_others(folder: Path, name: str, content: bytes, meet: Barrier) -> None:
    manifest = read_manifest(folder)
    with staged_engine(folder, manifest, name) as partial:
        meet.wait(60)  # everybody has read the manifest, and nobody has written it
        partial.write_bytes(content)
        meet.wait(60)
        place_engine(folder, partial, name, made_up_entry(manifest), manifest)


def _add_a_file_beside_others(folder: Path, name: str, content: bytes, meet: Barrier) -> None:
    meet.wait(60)
    staged = folder.with_name(name)
    staged.write_bytes(content)
    meet.wait(60)
    add_files(folder, {name: staged}, {"model.onnx": read_manifest(folder).files["model.onnx"].sha256})


def test_processes_that_build_at_once_lose_nothing(bundle: Path) -> None:
    other = "engines/tensorrt-rtx-sm86-fp16.engine"
    meet = FORK.Barrier(4)
    work: list[tuple[Callable[[Path, str, bytes, Barrier], None], str, bytes]] = [
        (_build_beside_others, NAME, b"one" * 1000),
        (_build_beside_others, NAME, b"two" * 7777),
        (_build_beside_others, other, b"three" * 999),
        (_add_a_file_beside_others, "model.aoti.pt2", b"four"),
    ]
    processes = [FORK.Process(target=does, args=(bundle, name, data, meet)) for does, name, data in work]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    assert_whole(bundle, NAME, other)
    assert "model.aoti.pt2" in read_manifest(bundle).files


def _count_up(folder: Path, times: int) -> None:
    def more(manifest: Manifest) -> Manifest:
        return replace(manifest, conversion={"count": manifest.conversion.get("count", 0) + 1})

    for _ in range(times):
        add_files(folder, {}, {}, more)


def test_no_change_of_a_manifest_is_lost(bundle: Path) -> None:
    add_files(bundle, {}, {}, lambda manifest: replace(manifest, conversion={}))
    processes = [FORK.Process(target=_count_up, args=(bundle, 100)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert read_manifest(bundle).conversion == {"count": 300}
    assert_whole(bundle)


def test_a_bundle_that_changed_meanwhile_is_not_given_the_engine(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    graph = replace(manifest.files["model.onnx"], sha256="0" * 64)
    newer = replace(manifest, files={**manifest.files, "model.onnx": graph})
    with staged_engine(bundle, manifest, NAME) as partial:
        write_manifest(bundle, newer)
        with pytest.raises(UsageError, match=r"was exported again while .* was made"):
            place_engine(bundle, partial, NAME, made_up_entry(manifest), manifest)
    assert read_manifest(bundle) == newer
    assert not (bundle / "engines").exists()


def test_a_bundle_that_was_replaced_meanwhile(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    with staged_engine(bundle, manifest, NAME) as partial:
        shutil.rmtree(partial.parent)
        with pytest.raises(UsageError, match=r"was replaced while .* was made"):
            place_engine(bundle, partial, NAME, made_up_entry(manifest), manifest)


def _stop(*_: Any) -> Any:
    raise KeyboardInterrupt


def _rename_but_stop_at(nth: int) -> Callable[[Any, Any], None]:
    rename, calls = os.rename, iter(range(9))
    return lambda old, new: _stop() if next(calls) == nth else rename(old, new)


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("stage", ["hash", "manifest", "first rename", "second rename", "last rename"])
def test_an_interruption_leaves_the_bundle_as_it_was(
    stage: str, older: bool, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if older:
        add_made_up_engine(bundle, content=b"older")
    before = files(bundle)
    patches: dict[str, tuple[Any, str, Any]] = {
        "hash": (bundles, "file_entry", _stop),
        "manifest": (Manifest, "to_bytes", _stop),
        "first rename": (os, "rename", _rename_but_stop_at(0)),
        "second rename": (os, "rename", _rename_but_stop_at(int(older))),
        "last rename": (os, "replace", _stop),
    }
    monkeypatch.setattr(*patches[stage])
    with pytest.raises(KeyboardInterrupt):
        add_made_up_engine(bundle)
    assert files(bundle) == before
    assert (bundle / "engines").exists() == older


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_between_the_renames_waits_for_the_last(
    number: signal.Signals, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_made_up_engine(bundle, content=b"older")
    rename = os.rename
    seen: list[int] = []

    def signalled(old: Path, new: Path) -> None:
        rename(old, new)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(os, "rename", signalled)
    before = signal.signal(number, lambda *_: seen.append(read_manifest(bundle).files[NAME].bytes))
    try:
        add_made_up_engine(bundle)
    finally:
        signal.signal(number, before)
    assert seen == [len(ENGINE)]  # once, when all was in place
    monkeypatch.undo()
    assert_whole(bundle, NAME)


KILLED = """
import os, signal, sys
from pathlib import Path
from blockexport.export.bundle.manifest import read_manifest
from blockexport.export.tensorrt.trt_engine import staged_engine
folder = Path(sys.argv[1])
with staged_engine(folder, read_manifest(folder), sys.argv[2]) as partial:
    partial.write_bytes(b"half an engine")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(bundle: Path) -> None:
    add_made_up_engine(bundle)
    other = "engines/tensorrt-rtx-sm120-fp16.engine"
    assert subprocess.run([sys.executable, "-c", KILLED, str(bundle), other]).returncode == -signal.SIGKILL
    assert [path.name for path in bundle.glob(".*.partial/*")] == [Path(other).name]
    add_made_up_engine(bundle, content=b"newer")
    assert_whole(bundle, NAME)


def test_partial_files_of_the_living_and_of_other_machines_are_left(tmp_path: Path) -> None:
    own, elsewhere = partial_path(tmp_path / "a"), tmp_path / ".a.some-other-machine-999999-00000000.partial"
    theirs = tmp_path / own.name.replace(str(os.getpid()), str(os.getppid()))
    impossible = tmp_path / own.name.replace(str(os.getpid()), "9" * 30)  # no process has this number
    for path in (own, elsewhere, theirs, impossible, tmp_path / ".partial", tmp_path / ".mine.partial"):
        path.touch()
    remove_abandoned(tmp_path)
    assert len(list(tmp_path.iterdir())) == 5
    assert not impossible.exists()


def test_a_disk_without_room_is_refused_before_the_build(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = read_manifest(bundle)
    weights = sum(manifest.files[name].bytes for name in ("model.onnx", "model.safetensors", "rope.safetensors"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=weights))
    with (
        pytest.raises(
            UsageError, match=rf"bundle needs {int(weights * 1.1)} bytes and its file system has {weights} free"
        ),
        staged_engine(bundle, manifest, NAME),
    ):
        pytest.fail("the build must not begin")
    assert not (bundle / "engines").exists()
    with staged_engine(bundle, manifest, NAME, weightless=True) as partial:
        assert partial.read_bytes() == b""


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """A function that limits the size of files this process may write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def test_a_manifest_that_cannot_be_written_leaves_no_engine(bundle: Path, small_files: Callable[[int], None]) -> None:
    before, manifest = files(bundle), read_manifest(bundle)
    with staged_engine(bundle, manifest, NAME) as partial:
        partial.write_bytes(b"small")
        small_files(100)
        with pytest.raises(UsageError, match=r"a file in .*bundle would be larger than .* allows"):
            place_engine(bundle, partial, NAME, made_up_entry(manifest), manifest)
    assert files(bundle) == before
    assert not (bundle / "engines").exists()


def test_what_is_in_the_way(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    (bundle / "engines").write_text("a file")
    with pytest.raises(UsageError, match="engines is no folder"), staged_engine(bundle, manifest, NAME):
        pytest.fail("the build must not begin")
    (bundle / "engines").unlink()
    (bundle / NAME).mkdir(parents=True)
    with pytest.raises(UsageError, match=r"\.engine is a folder"), staged_engine(bundle, manifest, NAME):
        pytest.fail("the build must not begin")


def test_a_damaged_entry_of_another_engine_is_told_before_the_build(bundle: Path) -> None:
    other = "engines/tensorrt-rtx-sm86-fp16.engine"
    manifest = replace(read_manifest(bundle), engines={other: {"backend": "tensorrt-rtx"}})
    write_manifest(bundle, manifest)
    with pytest.raises(UsageError, match=rf"entry of {other} is damaged"), staged_engine(bundle, manifest, NAME):
        pytest.fail("the build must not begin")
    add_made_up_engine(bundle, made_up_entry(manifest, "8.6"))
    assert_whole(bundle, other)


@pytest.mark.parametrize("missing", ["model.onnx", "model.safetensors"])
def test_a_manifest_that_lacks_what_an_engine_is_made_from(missing: str, bundle: Path) -> None:
    manifest = read_manifest(bundle)
    lacking = replace(manifest, files={name: file for name, file in manifest.files.items() if name != missing})
    with pytest.raises(UsageError, match=rf"manifest\.json does not list {missing}"):
        check_sources(bundle, lacking)


def test_the_order_of_targets_makes_no_other_engine() -> None:
    assert engine_name("tensorrt-rtx", ("12.0", "8.9", "10.0"), Precision.BF16) == (
        "engines/tensorrt-rtx-sm89-sm100-sm120-bf16.engine"
    )


def test_files_renamed_together_are_handed_back_where_one_fails(tmp_path: Path) -> None:
    new = [tmp_path / f"new{i}" for i in range(3)]
    for path in new[:2]:
        path.write_text(path.name)
    (tmp_path / "place0").write_text("older")
    with pytest.raises(FileNotFoundError):
        rename_together(tmp_path, [(path, tmp_path / f"place{i}") for i, path in enumerate(new)])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "new0": "new0",
        "new1": "new1",
        "place0": "older",
    }


def _count_up_when(folder: Path, begin: Event) -> None:
    begin.wait(60)
    _count_up(folder, 1)


def test_the_lock_is_held_against_others_and_leaves_nothing(bundle: Path) -> None:
    begin = FORK.Event()
    process = FORK.Process(target=_count_up_when, args=(bundle, begin))
    process.start()  # before the lock, which a child of its holder would hold as well
    with locked(bundle):
        begin.set()
        process.join(1)
        assert process.is_alive()
        assert "count" not in read_manifest(bundle).conversion
    process.join(60)
    assert process.exitcode == 0
    assert not (bundle / LOCK).exists()
