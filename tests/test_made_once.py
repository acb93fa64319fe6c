"""What tests share is made by one of them, whole or again, and a test that changes it is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.made_once import MadeOnce


def test_it_is_made_by_the_first_and_read_by_the_others(tmp_path: Path) -> None:
    calls: list[Path] = []

    def make(path: Path) -> None:
        calls.append(path)
        path.mkdir()
        (path / "file").write_text("made")

    paths = [MadeOnce(tmp_path).path("some/folder", make) for _ in range(3)]
    assert paths == [tmp_path / "some/folder"] * 3 and calls == paths[:1]
    assert (paths[0] / "file").read_text() == "made"


def test_half_of_it_is_made_again(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.mkdir()
        (path / "half").write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        MadeOnce(tmp_path).path("folder", fail)
    path = MadeOnce(tmp_path).path("folder", Path.mkdir)
    assert list(path.iterdir()) == []


def test_a_test_that_changes_it_is_found_out(tmp_path: Path) -> None:
    made = MadeOnce(tmp_path)
    file = made.path("file", lambda path: path.write_text("made"))
    folder = made.path("folder", Path.mkdir)
    assert made.changed() == []
    file.write_text("changed")
    (folder / "new").write_text("")
    assert set(made.changed()) == {"file/.", "folder/new"}
