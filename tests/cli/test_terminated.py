"""A command that is told to end (SIGTERM), or whose terminal is closed (SIGHUP), cleans up as after Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

WAITS = """
import sys, time
from pathlib import Path
from blockexport.cli import main
from blockexport.export.bundle.stage import staged

def app(**_):
    with staged(Path(sys.argv[1]), force=False):
        print("begun", flush=True)
        time.sleep(60)

main.app = app
sys.exit(main.run())
"""


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


def test_a_program_under_nohup_goes_on(tmp_path: Path) -> None:
    command = [
        "nohup",
        sys.executable,
        "-c",
        WAITS.replace("time.sleep(60)", "time.sleep(2)"),
        str(tmp_path / "bundle"),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0
