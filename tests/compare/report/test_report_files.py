"""The report's three files appear together or not at all, and a folder that cannot take them is refused beforehand."""

from __future__ import annotations

import errno
import os
import platform
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from blockexport.compare.report.report_files import check_report_folder, write_report
from blockexport.models.errors import UsageError
from tests.compare.report.test_report import FAIL, PASS, report_of

NAMES = {"report.json", "report.md", "report.html"}


def everything(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def places(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "taken" / "report.html").mkdir(parents=True)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    return tmp_path


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("file", "file is not a folder"),
        ("file/deeper/still", "file is not a folder"),
        ("taken", "report.html is a folder, where a file has to go"),
        ("dangling/x", "dangling is not a folder"),
    ],
)
def test_a_place_that_cannot_take_a_report(places: Path, folder: str, reason: str) -> None:
    before = everything(places)
    for attempt in (check_report_folder, lambda path: write_report(report_of(PASS), path)):
        with pytest.raises(UsageError) as caught:
            attempt(places / folder)
        said = str(caught.value)
        assert str(places / folder) in said and reason in said and "hoose another place" in said
    assert everything(places) == before


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refused)
    with pytest.raises(UsageError, match=r"cannot be written to .*new \(Permission denied\): choose another place"):
        check_report_folder(tmp_path / "new")


def test_looking_leaves_nothing(tmp_path: Path) -> None:
    check_report_folder(tmp_path)
    check_report_folder(tmp_path / "a" / "b")
    assert everything(tmp_path) == {}


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("older", [False, True])
def test_a_disk_that_fills_up_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, older: bool
) -> None:
    folder = tmp_path / "a" / "b"
    if older:
        write_report(report_of(PASS), folder)
    before = everything(tmp_path)
    plain, count = Path.write_bytes, 0

    def fill(path: Path, content: bytes) -> int:
        nonlocal count
        count += 1
        if count == at:
            plain(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(path, content)

    monkeypatch.setattr(Path, "write_bytes", fill)
    with pytest.raises(UsageError) as caught:
        write_report(report_of(FAIL), folder)
    assert str(caught.value) == (
        f"the report cannot be written to {folder} (No space left on device): free some space there, or choose "
        "another place"
    )
    assert everything(tmp_path) == before


def test_an_older_report_is_replaced(tmp_path: Path) -> None:
    write_report(report_of(PASS), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert write_report(report_of(FAIL), tmp_path) == ["report.json", "report.md", "report.html"]
    assert {path.name for path in tmp_path.iterdir()} == {*NAMES, "notes.txt"}
    assert (tmp_path / "report.md").read_text().startswith("# Fail")
    assert (tmp_path / "report.md").stat().st_mode == (tmp_path / "notes.txt").stat().st_mode


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    for name in ("report.md", "report.json"):
        (tmp_path / f".{name}.{platform.node()}-999999999-0123abcd.partial").write_text("half")
    (tmp_path / ".mine.partial").write_text("mine")
    write_report(report_of(PASS), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*NAMES, ".mine.partial"}


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_of_two_reports_at_once_all_files_are_one(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one begins while the first renames its files, and waits for it."""
    calls, others = count(1), []

    def in_between(move: Callable[[Path, Path], None], old: Path, new: Path) -> None:
        if next(calls) == at:
            others.append(threading.Thread(target=write_report, args=(report_of(FAIL), tmp_path)))
            others[0].start()
            others[0].join(0.5)
        move(old, new)

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, partial(in_between, getattr(os, name)))
    write_report(report_of(PASS), tmp_path)
    others[0].join()
    write_report(report_of(FAIL), tmp_path / "alone")
    assert everything(tmp_path / "alone") == {name: (tmp_path / name).read_bytes() for name in NAMES}
    assert {path.name for path in tmp_path.iterdir()} == {*NAMES, "alone"}


def test_a_file_system_without_locks_takes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    assert set(write_report(report_of(PASS), tmp_path)) == NAMES <= {path.name for path in tmp_path.iterdir()}
