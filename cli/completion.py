"""What the shell offers after Tab for a value; options and commands are Typer's part. Nothing heavy is imported."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

VARIABLE = "_BLOCKEXPORT_COMPLETE"  # set by the shell where it asks


def models(incomplete: str) -> list[str]:
    """Presets, and what a checkpoint or bundle may be in the current folder. The shell completes a path by itself."""
    from blockexport.models.families.every_family import PRESETS

    if "/" in incomplete:
        return []
    here: list[str] = []
    with suppress(OSError):  # a current folder that is gone, or may not be read
        here = sorted(path.name for path in Path().iterdir() if path.is_dir() or path.suffix == ".gguf")
    return [*PRESETS, *(name for name in here if not name.startswith("."))]
