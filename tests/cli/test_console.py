"""Where things are printed: results on stdout, progress on a terminal's stderr only, JSON that any reader can parse."""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from blockexport.cli import console
from blockexport.cli.main import main
from blockexport.models.progress import silent


def test_json_is_one_document_with_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"name": "žluťoučký", "values": [1, 2.5, None]})
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"name": "žluťoučký", "values": [1, 2.5, None]}
    assert "žluťoučký" in captured.out
    assert captured.err == ""


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        console.print_json({"error": math.nan})
    assert capsys.readouterr().out == ""


STEERING = "a\x1b[2J\x07\x9b31m\u202e\rb\tc\nd"
SHOWN = "a\\u001b[2J\\u0007\\u009b31m\\u202e\\u000db\tc\nd"


def test_what_is_said_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A stranger's tensor may be called so that it clears the screen, and paints what we did not say."""
    from rich.table import Table

    console.say(STEERING)
    assert capsys.readouterr().err == f"{SHOWN}\n"
    table = Table(STEERING.replace("\t", ""))
    table.add_row(STEERING.replace("\t", ""))
    console.stdout_console().print(STEERING, table, soft_wrap=True)
    said = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & set(said) and said.count("\\u001b[2J") == 3
    console.print_json({STEERING: STEERING})
    said = capsys.readouterr().out
    assert "\x9b" not in said and json.loads(said) == {STEERING: STEERING}


def test_without_a_terminal_long_work_has_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(console, "PLAIN_EVERY", 5.0)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with console.progress_bar() as progress:
        for layer in range(30):
            progress("explain: layer", layer, 30)
            now[0] += 1.0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [f"explain: layer {layer} of 30" for layer in (5, 10, 15, 20, 25)]


def test_without_a_terminal_short_work_and_quiet_work_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (False, True):
        with console.progress_bar(quiet=quiet) as progress:
            progress("explain: layer", 3, 30)
            assert (progress is silent) is quiet
    assert capsys.readouterr() == ("", "")


def test_a_quiet_command_that_works_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = str(tmp_path / "bundle")
    for command in (
        ["onnx", "tiny", "-o", bundle, "-M", "32", "--no-compare"],
        ["redeclare", bundle, "-M", "16", "-o", str(tmp_path / "other")],
        ["cpp", bundle, "-o", str(tmp_path / "program")],
    ):
        assert main([*command, "-q"]) == 0
        assert capsys.readouterr().err == ""


STYLED = """
from rich.text import Text
from blockexport.cli import console
console.stdout_console().print(Text("the limits", style="dim"), Text("FAIL", style="bold red"))
"""


@pytest.mark.parametrize("no_color", ["", "1", "0", "false"])
def test_no_color_is_plain_text_on_a_terminal_too(no_color: str) -> None:
    """Neither colours nor dim and bold."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": no_color}
    subprocess.run([sys.executable, "-c", STYLED], stdout=theirs, env=environment, timeout=60, check=True)
    os.close(theirs)
    seen = _all(ours)
    assert ("\x1b" in seen) is (no_color == "")
    assert no_color == "" or seen.splitlines() == ["the limits FAIL"]


CODE = """
from blockexport.cli import console
with console.progress_bar(quiet={quiet}) as progress:
    progress("reading weights", 0, 4)
    progress("reading weights", 3, 4)
    progress("judging", 1, 9)
print("the result")
"""


def run_on_terminal(quiet: bool) -> tuple[str, str]:
    """Stdout, and what a terminal on stderr received."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(quiet=quiet)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
        timeout=60,
    )
    os.close(theirs)
    seen = _all(ours)
    assert done.returncode == 0, seen
    return done.stdout.decode(), seen


def _all(descriptor: int) -> str:
    seen = b""
    while chunk := _read(descriptor):
        seen += chunk
    os.close(descriptor)
    return seen.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # Linux's end of file once the other side is closed
        return b""


def test_progress_is_drawn_on_a_terminal_and_stays_out_of_the_result() -> None:
    out, seen = run_on_terminal(quiet=False)
    assert out == "the result\n"
    assert "reading weights" in seen
    assert "3/4" in seen
    assert "judging" in seen


def test_quiet_draws_nothing() -> None:
    assert run_on_terminal(quiet=True) == ("the result\n", "")
