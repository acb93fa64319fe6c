"""The same inputs and versions give the same bytes, whatever the process, the folder, the hash seed, the umask and the
number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blockexport.export.bundle.manifest import sha256_of
from tests.support import shared_path

RUN = "import os, sys; os.umask(int(sys.argv.pop(1), 8)); from blockexport.cli.main import run; sys.exit(run())"


def build(folder: Path, *options: str, seed: int, umask: str, threads: int) -> dict[str, str]:
    """The SHA-256 of each file of a bundle that a process of its own makes."""
    folder.mkdir()
    command = [sys.executable, "-c", RUN, umask, "onnx", str(shared_path("models/stories260K")), "-o", "b", "-q"]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([*command, *options], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    paths = [path for path in (folder / "b").rglob("*") if path.is_file()]
    assert {oct(path.stat().st_mode & 0o777) for path in paths} == {oct(0o666 & ~int(umask, 8))}
    return {str(path.relative_to(folder / "b")): sha256_of(path) for path in paths}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), marks=pytest.mark.full),
        pytest.param(("--fp16",), marks=pytest.mark.slow),
        ("--quantize", "int4"),
        pytest.param(("--no-compare", "--quantize", "int4", "--head", "int4"), marks=pytest.mark.full),
    ],
)
def test_two_builds(options: tuple[str, ...], tmp_path: Path) -> None:
    one = build(tmp_path / "one", *options, seed=0, umask="022", threads=1)
    other = build(tmp_path / "a folder of another name", *options, seed=4242, umask="077", threads=2)
    different = sorted(name for name in one.keys() | other if one.get(name) != other.get(name))
    assert different == []
