"""A command that is told to end (SIGTERM), or whose terminal is closed (SIGHUP), cleans up as after Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def hangup_is_heard() -> Iterator[None]:
    """Under nohup the tests' own processes would not hear it either, and rightly so."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


# A signal between Python's last look and the sleep itself is seen after the sleep, so that no sleep is long.
WAIT = """
import time

def wait():
    for _ in range(600):
        time.sleep(0.1)
"""

WAITS = (
    WAIT
    + """
import sys
from pathlib import Path
from blockexport.cli import main
from blockexport.export.bundle.stage import staged

def app(**_):
    with staged(Path(sys.argv[1]), force=False):
        print("begun", flush=True)
        wait()

main.app = app
sys.exit(main.run())
"""
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_was_half_written_is_removed(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITS, str(tmp_path / "bundle")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        assert len(list(tmp_path.glob(".bundle.*.partial"))) == 1
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("", "interrupted\n")
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


SWALLOWS = (
    WAIT
    + """
import sys
from blockexport.cli import main
from blockexport.models.errors import UsageError

def recurse():
    recurse()

def app(**_):
    print("begun", flush=True)
    try:
        wait()
    except KeyboardInterrupt:
        pass
    {}

main.app = app
sys.exit(main.run())
"""
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(
    "ending",
    [
        "raise ImportError('initialization failed') from None",
        "recurse()",
        "raise UsageError('the library does not load')",
        "raise MemoryError",
        "raise BrokenPipeError",
        "sys.exit(1)",
    ],
)
def test_what_a_library_makes_of_an_interrupt_is_an_interrupt(number: signal.Signals, ending: str) -> None:
    command = [sys.executable, "-c", SWALLOWS.format(ending)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("", "interrupted\n")
    assert process.returncode == 130


IMPORTS = (
    WAIT
    + """
import sys
from pathlib import Path
from blockexport.cli import main

def app(**_):
    import slow
    print("went on", flush=True)
    wait()

main.app = app
sys.exit(main.run())
"""
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_waits_for_the_end_of_an_import(number: signal.Signals, tmp_path: Path) -> None:
    """Of torch's half, it would abort the process."""
    slow = 'import time\nprint("begun", flush=True)\nfor _ in range(20): time.sleep(0.02)\nprint("whole", flush=True)\n'
    (tmp_path / "slow.py").write_text(slow)
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})" + IMPORTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (out.splitlines()[0], err, process.returncode) == ("whole", "interrupted\n", 130)


def test_without_a_signal_each_has_its_own_code() -> None:
    for ending, code in (("raise ImportError('initialization failed')", 70), ("raise UsageError('no')", 2)):
        command = [sys.executable, "-c", SWALLOWS.replace("600", "0").format(ending)]
        assert subprocess.run(command, capture_output=True, timeout=60).returncode == code


def test_a_program_under_nohup_goes_on(tmp_path: Path) -> None:
    command = [
        "nohup",
        sys.executable,
        "-c",
        WAITS.replace("range(600)", "range(20)"),
        str(tmp_path / "bundle"),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0
