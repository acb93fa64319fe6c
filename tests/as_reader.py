"""Commands run as a reader of the pages runs them: by a shell, as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXPORT_SMOLLM2 = "blockexport onnx SmolLM2-135M-Instruct.Q4_1.gguf -o smollm2 --max-sequence-length 512"
"""The README's."""

Done = subprocess.CompletedProcess[str]


def run_as_reader(command: str | list[str], folder: Path) -> Done:
    """Run a command line, or a program with its arguments, in `folder`."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",
    }
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        shell=isinstance(command, str),
        capture_output=True,
        text=True,
        timeout=1200,  # a busy machine, or one with an old instruction set
    )
