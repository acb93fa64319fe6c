"""Files that many tests read and one makes: the first worker that asks for them makes them, and the others wait.

They are for reading: a test that changes what it is given takes a copy. `changed` finds one that does not.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

Stamps = dict[str, tuple[int, int]]


class MadeOnce:
    """Named files and folders under one root, which all workers of a run share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._stamps: dict[Path, Stamps] = {}

    def path(self, name: str, make: Callable[[Path], object]) -> Path:
        """The path `name` below the root, after `make(path)` has filled it here or in another worker.

        What a `make` that raised has left is removed, and the next one to ask tries again.
        """
        path, done = self.root / name, self.root / f"{name}.made"
        done.parent.mkdir(parents=True, exist_ok=True)
        with (self.root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(path, ignore_errors=True)
                path.unlink(missing_ok=True)
                make(path)
                done.touch()
        self._stamps.setdefault(path, _stamps(path))
        return path

    def changed(self) -> list[str]:
        """The files that are not as they were when this worker first asked for them."""
        return [
            f"{path.name}/{name}"
            for path, before in self._stamps.items()
            for name, _ in sorted(before.items() ^ _stamps(path).items())
        ]


def _stamps(path: Path) -> Stamps:
    """Size and time of change of every file."""
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return {
        str(file.relative_to(path)): (file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()
    }
