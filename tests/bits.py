"""Damage of the smallest kind."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path, bit: int) -> None:
    """Turn one bit of a file; once more, and it is as it was."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))
