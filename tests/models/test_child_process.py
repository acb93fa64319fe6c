"""A process for some work ends with the command that started it, whatever ended that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blockexport.models.child_process import command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")

BUILDS = "import time\ndef serve(connection):\n    print('builds', flush=True)\n    time.sleep(60)\n"
WAITS = """
import os, subprocess, sys, time
from multiprocessing.connection import Pipe
from blockexport.models.child_process import command

ours, theirs = Pipe()
builder = subprocess.Popen(
    command("made_up_builder", theirs.fileno()), pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True
)
builder.stdout.readline()
print(builder.pid, flush=True)
sys.stdin.readline()
os._exit(0)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "made_up_builder.py").write_text(BUILDS)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def lives(process: int) -> bool:
    """Whether it runs, a zombie aside."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, None], ids=str)
def test_it_ends_with_its_parent(end: signal.Signals | None, environment: dict[str, str]) -> None:
    """None: the parent leaves without cleaning up."""
    waits = [sys.executable, "-P", "-c", WAITS]
    pipe = subprocess.PIPE
    with subprocess.Popen(waits, stdin=pipe, stdout=pipe, text=True, env=environment) as parent:
        assert parent.stdout is not None
        builder = int(parent.stdout.readline())
        assert lives(builder)
        if end is not None:
            parent.send_signal(end)
        parent.communicate("\n" if end is None else None, timeout=60)
    until = time.monotonic() + 30
    while lives(builder) and time.monotonic() < until:
        time.sleep(0.02)
    assert not lives(builder)


def test_it_does_not_begin_where_its_parent_is_gone_already(environment: dict[str, str]) -> None:
    line = command("made_up_builder", 0)
    line[-2] = "1"  # the parent it is told of is not the one it has
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
