"""Every file that a user names is opened in one place, which neither waits nor fills memory."""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blockexport.models.errors import UsageError
from blockexport.models.regular_file import (
    is_there,
    open_regular,
    read_beginning,
    read_json,
    read_json_object,
    require_readable,
    require_utf8,
)
from tests.support import REPOSITORY

# Files that belong to the program or the system, that it wrote itself, or has just found to be regular.
OTHER_READERS = {
    "models/checkpoints/safetensors_header.py",
    "export/output/reservation.py",
    "export/bundle/aoti_machine.py",
    "export/preflight.py",
    "export/triton_repository.py",
    "cpp_project.py",
    "runtime/tensorrt/trt_decoder.py",
    "runtime/bench/meter.py",
    "runtime/huge_pages.py",
    "runtime/threads.py",
    "compare/audits/artifact_weights.py",
    "compare/report/report_files.py",
    "compare/report/html_page.py",
}


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    os.chdir(path.parent)  # a socket's own path may be short only
    socket.socket(socket.AF_UNIX).bind(path.name)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_pipe, "is a pipe"),
        (_socket, "socket|No such device"),
        (lambda path: path.symlink_to("/dev/zero"), "is a character device"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.symlink_to("gone"), r"it is a link to gone \(/.*/gone\), and there is nothing there"),
        (lambda path: path.symlink_to("/gone/away"), "it is a link to /gone/away, and there is nothing there"),
        (lambda path: path.symlink_to(path.name), r"it is a link to config.json .*, and links lead in a circle"),
    ],
    ids=["pipe", "socket", "device", "folder", "dangling", "dangling elsewhere", "circle"],
)
def test_what_is_no_regular_file_is_refused_at_once(
    make: Callable[[Path], None], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.json"
    make(path)
    for read in (open_regular, is_there, lambda path: read_json(path, "fetch it")):
        with pytest.raises(UsageError, match=words) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_a_text_without_end_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room
    with pytest.raises(UsageError, match="more than 268435456 bytes"):
        read_json(path, "fetch it")
    path.write_text("a" * 9 + "é" * 9, encoding="utf-8")
    assert read_beginning(path, 10) == "a" * 9
    assert read_beginning(path, 100) == "a" * 9 + "é" * 9


@pytest.mark.parametrize(("digits", "code"), [(300, True), (301, False), (4300, False), (5000, False)])
def test_a_number_beyond_all_types_is_the_files_fault(digits: int, code: bool, tmp_path: Path) -> None:
    """Python's whole numbers have no limit, and its floating-point numbers stop it with an OverflowError."""
    path = tmp_path / "config.json"
    path.write_text(f'{{"rope_theta": {"9" * digits}}}')
    if code:
        assert float(read_json(path, "fetch it")["rope_theta"]) > 1e299
    else:
        with pytest.raises(UsageError, match=f"is not valid JSON .a number of {digits} digits.: fetch it"):
            read_json(path, "fetch it")


@pytest.mark.parametrize(("name", "refused"), [("b\udcff", True), ("b\xff", False), ("b/\udcc3", True), ("模", False)])
def test_a_path_that_is_no_utf_8_is_refused(name: str, refused: bool) -> None:
    if not refused:
        require_utf8(Path(name))
        return
    with pytest.raises(UsageError, match="is not UTF-8: rename it"):
        require_utf8(Path(name))


def test_a_file_may_be_absent_and_may_hold_one_object_only(tmp_path: Path) -> None:
    assert not is_there(tmp_path / "absent")
    path = tmp_path / "list.json"
    path.write_text("[1]")
    assert is_there(path) and read_json(path, "fetch it") == [1]
    with pytest.raises(UsageError, match=r"holds \[1\], and has to hold one JSON object: fetch it"):
        read_json_object(path, "fetch it")
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(UsageError, match="is not valid JSON"):
        read_json(path, "fetch it")


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[Path]:
    """A folder with a file that this process may not read, although it may be the administrator's."""
    path = tmp_path / "folder" / "secret"
    path.parent.mkdir()
    path.write_text("{}")
    path.chmod(0)
    administrator = os.geteuid() == 0
    if administrator:
        for folder in (path.parent, *tmp_path.parents[:3], tmp_path):
            folder.chmod(folder.stat().st_mode | 0o055)
        os.seteuid(65534)
    try:
        yield path
    finally:
        if administrator:
            os.seteuid(0)


def test_what_may_not_be_read_is_said_to_be_so(nobody: Path) -> None:
    assert is_there(nobody)
    for read in (open_regular, require_readable, lambda path: read_json(path, "fetch it")):
        with pytest.raises(UsageError, match="secret cannot be read: Permission denied"):
            read(nobody)


def _reads(path: Path) -> list[str]:
    """Names of the methods that read a file in a source file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            mode = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
            if name in ("read_text", "read_bytes", "load_file") or (name == "open" and mode in ("r", "rb")):
                found.append(name)
    return found


def test_nothing_else_opens_files_that_may_be_a_users() -> None:
    found = {
        str(path.relative_to(REPOSITORY))
        for folder in ("models", "export", "runtime", "compare", "cli")
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if _reads(path) and path.name != "regular_file.py"
    }
    assert sorted(found - OTHER_READERS) == [], "read them by models/regular_file.py"
