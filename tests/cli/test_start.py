"""The program from its first instruction on: Ctrl-C while it imports, closed and broken streams, poor terminals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "import sys; from blockexport.cli.start import run; sys.exit(run())"

# Importing Typer takes until the test has sent its signal.
SLOW_IMPORT = """
import sys, time

class Slow:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            print("importing", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
"""


def _run(
    *arguments: str, before: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """The program as a shell starts it: `before` is what is redirected."""
    command = ["sh", "-c", f'exec "$0" -c "$PROGRAM" "$@" {before}', sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, env={**os.environ, "PROGRAM": PROGRAM, **(environment or {})}, timeout=60
    )


def test_ctrl_c_while_it_imports_is_one_word_and_130() -> None:
    command = [sys.executable, "-c", SLOW_IMPORT + PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "interrupted\n")
    assert process.returncode == 130


def test_nothing_is_imported_before_ctrl_c_is_heard() -> None:
    """Until then it is Python that answers, with a traceback."""
    code = (
        "import _signal, sys\n"
        "before = {*sys.modules, '__future__'}\n"
        "def heard(number, handler):\n"
        "    print(handler.__name__, *sorted(set(sys.modules) - before))\n"
        "    raise SystemExit(0)\n"
        "_signal.signal = heard\n" + PROGRAM
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    own = "blockexport blockexport.cli blockexport.cli.start"
    assert (done.stdout, done.stderr) == (f"_leave {own}\n", "")


def test_ctrl_c_that_the_shell_has_ignored_stays_ignored() -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "import blockexport.cli.main as main\n"
        "main.run = lambda: int(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)\n" + PROGRAM
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 1


@pytest.mark.parametrize(
    ("redirected", "code"),
    [
        (">&-", 0),
        ("2>&-", 0),
        (">&- 2>&- <&-", 0),
        (">/dev/full", 2),
        (">/dev/full 2>/dev/full", 2),
    ],
)
def test_closed_and_full_streams_end_with_a_code_that_means_something(redirected: str, code: int) -> None:
    done = _run("inspect", "tiny", before=redirected)
    assert done.returncode == code
    assert b"bug of ours" not in done.stderr and b"Exception ignored" not in done.stderr
    assert (done.stderr.count(b"\n"), b"No space left" in done.stderr) in ((0, False), (1, True))


def test_a_complaint_that_nobody_can_hear_is_exit_2() -> None:
    assert _run("nope", before="2>/dev/full").returncode == 2
    assert _run("inspect", "no-such-model", before="2>/dev/full").returncode == 2


def test_a_closed_stdin_is_an_empty_prompt() -> None:
    code = "from blockexport.cli import start, generate_command as g; start.open_standard_streams()\n"
    code += "print(g._read_stdin())"
    command = ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, code]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "b''\n"


ASCII = [
    {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""},
    {"PYTHONIOENCODING": "latin-1"},
]


@pytest.mark.parametrize("environment", ASCII, ids=["ascii", "C", "latin-1"])
def test_a_terminal_without_utf_8_gets_replacements_and_whole_json(environment: dict[str, str]) -> None:
    shown = _run("inspect", "tiny", environment=environment)
    assert (shown.returncode, shown.stderr) == (0, b"")
    code = (
        "from blockexport.cli import console, start\nstart.open_standard_streams()\n"
        "print('caf\\u00e9 \\u6a21')\nconsole.print_json({'m\\udcff': '\\u6a21'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={**os.environ, **environment}, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    first, _, rest = done.stdout.partition(b"\n")
    assert first in (b"caf? ?", b"caf\xe9 ?")
    assert json.loads(rest) == {"m\udcff": "模"}


ONLY_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_path_in_utf_8_where_the_locale_is_not_is_told_what_to_set(tmp_path: Path) -> None:
    done = _run("onnx", "tiny", "-o", str(tmp_path / "bü"), "--no-compare", environment=ONLY_ASCII)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert b"is UTF-8, and this locale is not: set LC_ALL=C.UTF-8" in done.stderr


@pytest.mark.parametrize("prompt", ["é", "模型", "plain", "\udcc3\udca9"])
def test_a_prompt_in_utf_8_is_read_in_any_locale(prompt: str) -> None:
    code = "import sys\nfrom blockexport.cli import generate_command as g\nprint(ascii(g._read_prompt(sys.argv[1])))"
    command = [sys.executable, "-c", code, prompt]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **ONLY_ASCII}, text=True, timeout=60)
    assert done.stdout.strip() == ascii("é" if prompt[0] == "\udcc3" else prompt)
