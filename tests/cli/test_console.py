"""Where things are printed: results on stdout, progress on a terminal's stderr only, JSON that any reader can parse."""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
import sys

import pytest

from blockexport.cli import console
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


def test_progress_is_silent_when_nobody_watches() -> None:
    with console.progress_bar() as progress:
        assert progress is silent


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
    seen = b""
    while chunk := _read(ours):
        seen += chunk
    os.close(ours)
    assert done.returncode == 0, seen
    return done.stdout.decode(), seen.decode()


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
