"""Long files are handed out first, and a file that was renamed or joined to another does not drop out unseen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.file_order import LONGEST, longest_first
from tests.support import REPOSITORY


def test_the_files_are_there_and_named_once() -> None:
    missing = [name for name in LONGEST if not (REPOSITORY / "tests" / name).is_file()]
    assert missing == [] and len(set(LONGEST)) == len(LONGEST)


def test_tests_of_long_files_come_first_and_others_stay() -> None:
    root = str(REPOSITORY / "tests")
    paths = ["test_a.py", LONGEST[1], "test_b.py", LONGEST[0], LONGEST[1]]
    items: list[Any] = [SimpleNamespace(path=f"{root}/{path}", number=i) for i, path in enumerate(paths)]
    ordered: list[Any] = longest_first(items, root)
    assert [item.number for item in ordered] == [3, 1, 4, 0, 2]
