"""Inputs handed to a parser again, as they are: `python -P -m tests.fuzzing.replay PARSER FILE_OR_FOLDER ...`."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzzing.parsers import PARSERS, try_input


def replay(name: str, paths: list[Path]) -> None:
    """Raises what the parser raises where it is no refusal."""
    with TemporaryDirectory() as outer:
        folder = Path(outer, "in")
        folder.mkdir()
        for path in paths:
            for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                try_input(PARSERS[name], file.read_bytes(), folder)


if __name__ == "__main__":
    replay(sys.argv[1], [Path(argument) for argument in sys.argv[2:]])
