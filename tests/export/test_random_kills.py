"""A sample of what `benchmarks/kills.py` runs whole: a command killed at random moments, its disk filled at others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"


def run(*options: str) -> dict[str, object]:
    command = [sys.executable, "-P", str(SCRIPT), "--seed", "7", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kinds", [["redeclare"], pytest.param(["export", "report"], marks=pytest.mark.full)])
def test_kills(kinds: list[str]) -> None:
    found = run("--only", *kinds, "--count", "12")
    assert found["faults"] == []
    assert any("killed" in seen for seen in found["seen"])  # type: ignore[attr-defined]


@pytest.mark.full
def test_full_disks(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True).returncode != 0:
        pytest.skip("mounting needs root")
    subprocess.run(["umount", str(tmp_path)], check=True)
    assert run("--only", "export", "redeclare", "report", "--count", "12", "--full-disk")["faults"] == []
