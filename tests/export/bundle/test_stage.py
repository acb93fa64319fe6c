"""A bundle comes to its place whole or not at all, beside other processes, after killed ones, and over nothing else."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockexport.cli.main import main
from blockexport.export.bundle.manifest import Manifest, read_manifest
from blockexport.export.bundle.stage import Stage, addition, staged
from blockexport.export.output.hidden_names import OLD, PARTIAL, hidden_place
from blockexport.export.output.lock import FileLock
from blockexport.export.output.ownership import remove_own
from blockexport.export.output.reservation import reserved
from blockexport.models.errors import UsageError
from tests.export.tensorrt.trt_support import rtx
from tests.exported import export, random_model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "bundle"
    export(random_model(num_hidden_layers=1, layer_types=(), sliding_window=None), folder)
    return folder


@pytest.fixture
def manifest(made: Path) -> Manifest:
    return read_manifest(made)


def fill(stage: Stage, made: Path) -> None:
    shutil.copytree(made, stage.folder, dirs_exist_ok=True)
    (stage.folder / "model.onnx").write_text("newer")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_second_process_is_told_who_the_first_is(
    made: Path, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "b"
    monkeypatch.setattr(sys, "argv", ["blockexport", "onnx", "my model"])
    with staged(place, force=False) as stage:
        fill(stage, made)
        for force in (False, True):
            said = (
                rf"b is in use by process {os.getpid()} on .+ since [0-9-]+ [0-9:]+ .*\(blockexport onnx 'my model'\)"
            )
            with pytest.raises(UsageError, match=said), staged(place, force=force):
                pytest.fail("there are two")
        stage.seal(manifest)
    with pytest.raises(UsageError, match="already holds a bundle"), staged(place, force=False):
        pytest.fail("the first was done")
    assert names(tmp_path) == {"b"}


@pytest.mark.parametrize(
    "command",
    [
        ("onnx", "tiny", "--no-compare"),
        ("onnx", "tiny", "--no-compare", "--force"),
        ("redeclare", "{made}", "-M", "9"),
        ("aoti", "tiny", "--no-compare"),
        ("trt", "tiny", "--fp16", "--backend", "tensorrt-rtx", "--compute-capability", "8.9"),
    ],
    ids=" ".join,
)
def test_a_command_that_comes_second(
    command: tuple[str, ...], made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if command[0] == "trt":
        rtx()
    with reserved(tmp_path / "b"):
        assert main([*(word.format(made=made) for word in command), "-o", str(tmp_path / "b"), "--quiet"]) == 2
        assert re.search(
            r"b is in use by process \d+ .*: wait for it, or choose another output", capsys.readouterr().err
        )
    assert names(tmp_path) == set()


KILLED = """
import os, signal, sys
from pathlib import Path
from blockexport.export.bundle.stage import staged
with staged(Path(sys.argv[1]), force=False) as stage:
    (stage.folder / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("next_one", ["b", "another"])
def test_what_a_killed_process_left_is_removed_by_the_next(next_one: str, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "b")])
    assert done.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 3, "the folder in the making and the lock"
    with staged(tmp_path / next_one, force=False) as stage:
        assert names(tmp_path) == {"b", stage.folder.name, f".{next_one}.blockexport.lock"}
    assert names(tmp_path) == {"b"}


def test_what_others_are_making_and_what_only_looks_like_it_is_left(tmp_path: Path) -> None:
    users = {".b.partial", ".b.old", ".b.blockexport.partial", ".b.blockexport.0123.partial", ".b.0123456789ab.partial"}
    for name in users:
        (tmp_path / name).mkdir()
    with staged(tmp_path / "a", force=False) as living, staged(tmp_path / "b", force=False):
        assert living.folder.is_dir()
    assert names(tmp_path) == users


def test_a_bundle_whose_replacement_was_killed_between_the_renames_comes_back(made: Path, tmp_path: Path) -> None:
    place = tmp_path / "b"
    shutil.copytree(made, hidden_place(place, OLD))
    shutil.copytree(made, hidden_place(place, PARTIAL))
    with reserved(tmp_path / "other"):
        pass
    assert names(tmp_path) == {"b"}
    old = hidden_place(place, OLD)
    shutil.copytree(made, old)
    (old / "mine.txt").write_text("mine")
    with reserved(place):
        pass
    assert names(tmp_path) == {"b", old.name}, "the new one is there: of the old one only its own files go"
    assert names(old) == {"mine.txt"}


def test_a_forged_manifest_has_nothing_removed_elsewhere(made: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(made, tmp_path / "b"))
    manifest = json.loads((place / "manifest.json").read_text())
    elsewhere = ("../empty/x.safetensors", f"{tmp_path}/empty/x.safetensors", "../empty/engines/x.engine")
    manifest["files"] |= dict.fromkeys(elsewhere, manifest["files"]["model.onnx"])
    (place / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "empty" / "engines").mkdir(parents=True)
    assert remove_own(place)
    assert names(tmp_path) == {"empty"} and names(tmp_path / "empty") == {"engines"}


def test_a_bundle_is_not_replaced_while_something_is_added(made: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(made, tmp_path / "b"))
    with addition(place) as one, addition(place) as other:
        assert one != other and one.is_dir() and other.is_dir()
        with pytest.raises(UsageError, match="is in use by process"), staged(place, force=True):
            pytest.fail("it is being added to")
    with staged(place, force=True), pytest.raises(UsageError, match="is in use by process"), addition(place):
        pytest.fail("it is being replaced")
    assert names(tmp_path) == {"b"} and names(place) == names(made)


def test_a_bundle_whose_own_folder_may_not_be_written_is_added_to(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that is mounted, which nothing beside it can be renamed into."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    place = Path(shutil.copytree(made, tmp_path / "b"))
    monkeypatch.setattr(FileLock, "take", refused)
    with addition(place) as folder:
        assert folder.is_dir() and folder.parent == place
    assert names(place) == names(made) and names(tmp_path) == {"b"}


def test_a_disk_too_full_for_the_lock_is_left_as_it_was(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(shutil.copytree(made, tmp_path / "b"))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UsageError, match="no space was left for"), addition(place):
        pytest.fail("nothing can be added")
    assert names(tmp_path) == {"b"} and names(place) == names(made)


def others_bundle(place: Path) -> None:
    place.mkdir()
    (place / "thesis.txt").write_text("mine")


def note_within(place: Path) -> None:
    (place / "notes.txt").write_text("mine")


@pytest.mark.parametrize(
    ("older", "happens", "said"),
    [
        (False, others_bundle, "holds files that are not a bundle"),
        (False, lambda place: place.write_text("mine"), "is a file"),
        (False, lambda place: place.symlink_to("nowhere"), "is a symbolic link"),
        (True, note_within, r"holds notes\.txt, which blockexport did not write"),
    ],
)
def test_what_comes_to_the_place_meanwhile_stays(
    older: bool, happens: Callable[[Path], object], said: str, made: Path, manifest: Manifest, tmp_path: Path
) -> None:
    place = tmp_path / "b"
    if older:
        shutil.copytree(made, place)
    (tmp_path / "b.new").mkdir()
    told = rf"b {said}.*\. It is as it was; the new bundle is kept as .*b\.new-2"
    with staged(place, force=True) as stage:
        fill(stage, made)
        happens(place)
        with pytest.raises(UsageError, match=told):
            stage.seal(manifest)
    assert (tmp_path / "b.new-2" / "model.onnx").read_text() == "newer"
    assert names(tmp_path) == {"b", "b.new", "b.new-2"}
    if place.is_dir():
        assert {path.read_text() for path in place.glob("*.txt")} == {"mine"}


@pytest.mark.parametrize("nth", [0, 1])
def test_a_replacement_that_fails_leaves_both(
    nth: int, made: Path, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(shutil.copytree(made, tmp_path / "b"))
    rename, calls = os.rename, iter(range(9))

    def failing(old: Any, new: Any) -> None:
        if next(calls) == nth:
            raise PermissionError(1, "Operation not permitted")
        rename(old, new)

    with staged(place, force=True) as stage:
        fill(stage, made)
        monkeypatch.setattr(os, "rename", failing)
        with pytest.raises(UsageError, match=r"cannot be written or replaced \(Operation not permitted\)"):
            stage.seal(manifest)
    assert names(tmp_path) == {"b", "b.new"}
    assert (place / "model.onnx").read_bytes() == (made / "model.onnx").read_bytes()


def test_a_rejected_bundle_replaces_an_older_one_and_nothing_else(
    made: Path, manifest: Manifest, tmp_path: Path
) -> None:
    place = tmp_path / "b"

    def reject(*inputs: Path) -> str:
        with staged(place, inputs, force=False) as stage:
            fill(stage, made)
            return stage.reject(manifest).name

    assert [reject(), reject()] == ["b.rejected"] * 2
    assert reject(tmp_path / "b.rejected") == "b.rejected-2", "it is what the bundle is made from"
    (tmp_path / "b.rejected" / "notes.txt").write_text("mine")
    (tmp_path / "b.rejected-2").rename(tmp_path / "elsewhere")
    (tmp_path / "b.rejected-2").symlink_to("elsewhere")
    assert reject() == "b.rejected-3"
    assert names(tmp_path) == {"b.rejected", "b.rejected-2", "b.rejected-3", "elsewhere"}


def test_parents_that_were_made_are_taken_back(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), staged(tmp_path / "a" / "b" / "c", force=False):
        raise RuntimeError
    assert names(tmp_path) == set()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with staged(tmp_path / "b", force=False) as stage:
        assert stage.folder.is_dir()


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/passwd"), os.mkfifo], ids=["link", "pipe"])
def test_a_lock_that_is_no_file_is_refused(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "lock")
    with pytest.raises(UsageError, match="is the name of a lock"):
        FileLock.take(tmp_path / "lock")
