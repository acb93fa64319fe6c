"""A process that is killed before any one of its changes leaves the old bundle, or the complete new one, or none where
one was being replaced; the next process completes or removes what it left."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blockexport import redeclare, verify_bundle
from blockexport.export.bundle.bundle import add_files
from blockexport.export.bundle.manifest import read_manifest
from blockexport.export.bundle.stage import addition
from blockexport.export.output.atomic_write import PLAN, finish_moves, write_together

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}
WRITES = os.O_WRONLY | os.O_RDWR


def changes(folder: Path, event: str, arguments: tuple[object, ...]) -> bool:
    """Whether an event that Python tells of is about to change a file below `folder`."""
    if event == "open":
        return isinstance(arguments[0], str) and arguments[0].startswith(str(folder)) and bool(
            isinstance(arguments[2], int) and arguments[2] & WRITES
        )  # fmt: skip
    place = str(arguments[0]) if event in CHANGES else "/"
    return not place.startswith("/") or place.startswith(str(folder))  # rmtree has names in a folder that it holds


def killed(act: Callable[[], object], step: int, folder: Path) -> bool:
    """Whether `act`, in a process of its own, was killed before its change number `step` below `folder`."""
    process = os.fork()
    if process == 0:
        count = itertools.count(1)

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if changes(folder, event, arguments) and next(count) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            act()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


def faults(bundle: Path, *said: str) -> list[str]:
    """But for what is `said`, and for the made-up engine, of which the manifest has no description."""
    said = (*said, "that the manifest does not describe")
    return [problem for problem in verify_bundle(bundle).problems if not any(words in problem for words in said)]


def add_engine(bundle: Path, content: bytes) -> None:
    """As a build does, but for the entry under `engines`."""
    with addition(bundle) as hidden:
        (hidden / "aoti.json").write_bytes(content)
        add_files(bundle, {"engines/a.engine": hidden / "aoti.json"}, {})


Act = Callable[[Path, Path], object]
ACTS: dict[str, tuple[Act, Act]] = {
    "redeclare": (lambda made, b: redeclare(b, 400), lambda made, b: redeclare(b, 500)),
    "redeclare into another": (
        lambda made, b: redeclare(made, 400, b, force=True),
        lambda made, b: redeclare(made, 500, b, force=True),
    ),
    "add a file": (lambda made, b: add_engine(b, b"new"), lambda made, b: add_engine(b, b"next")),
}


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ACTS)
def test_before_any_change(name: str, every: int, judged_stories: Path, tmp_path: Path) -> None:
    act, next_act = ACTS[name]
    absent = 0
    for step in itertools.count(1, every):
        folder = tmp_path / str(step)
        bundle = Path(shutil.copytree(judged_stories, folder / "bundle"))
        if name == "add a file" and step % 2:  # once more, so that there is one to replace
            add_engine(bundle, b"old")
        whole = not killed(lambda bundle=bundle: act(judged_stories, bundle), step, folder)  # type: ignore[misc]
        absent += not bundle.exists()
        assert not bundle.exists() or faults(bundle, "was left by a process") == [], step
        next_act(judged_stories, bundle)
        assert faults(bundle) == [], step
        assert list(folder.iterdir()) == [bundle], step
        there = {str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file()}
        assert there == {*read_manifest(bundle).files, "manifest.json"}, step
        shutil.rmtree(folder)
        if whole:
            break
    assert step > 15
    assert every > 1 or absent == (1 if name == "redeclare into another" else 0)


def test_files_that_belong_together(tmp_path: Path) -> None:
    def content(of: str) -> dict[str, bytes]:
        return {name: f"{name} of the {of} report".encode() for name in ("report.json", "report.md", "report.html")}

    def there(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.glob("report.*")}

    seen = []
    for step in itertools.count(1):
        folder = tmp_path / str(step)
        write_together(folder, content("old"))
        whole = not killed(lambda folder=folder: write_together(folder, content("new")), step, folder)  # type: ignore[misc]
        finish_moves(folder)
        assert there(folder) in (content("old"), content("new")), step
        seen.append(there(folder) == content("new"))
        write_together(folder, content("next"))
        assert there(folder) == content("next") and len(list(folder.iterdir())) == 3, step
        if whole:
            break
    assert seen == sorted(seen) and seen.count(True) > 5 and seen.count(False) > 5


@pytest.mark.parametrize("new", ["../outside", "/etc/hostname", "link/victim", "{", 5, ".."])
def test_a_plan_of_a_stranger_moves_nothing_outside(new: object, judged_stories: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(judged_stories, tmp_path / "bundle"))
    (tmp_path / "away").mkdir()
    for victim in (tmp_path / "outside", tmp_path / "away" / "victim"):
        victim.write_text("mine")
    (bundle / "link").symlink_to("../away")
    for moves, removed in (([[new, "config.json"]], []), ([["config.json", new]], []), ([], [new])):
        content = "{" if new == "{" else json.dumps({"moves": moves, "removed": removed})
        (bundle / PLAN).write_text(content)
        before = (bundle / "config.json").read_bytes()
        read_manifest(bundle)
        assert (bundle / "config.json").read_bytes() == before
        assert (tmp_path / "outside").read_text() == (tmp_path / "away" / "victim").read_text() == "mine"
        assert any(PLAN in problem for problem in verify_bundle(bundle).problems)
