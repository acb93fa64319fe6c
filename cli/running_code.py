"""A word before code runs that somebody else has put into a bundle."""

from __future__ import annotations

from pathlib import Path

from blockexport.cli import console


def warn_of_code(folder: Path, backend: str, *, trust: bool) -> None:
    """Say which files of a bundle are code that `backend` runs and that was not built here; nothing with `trust`.

    Raises:
        UsageError: no such bundle or backend.
    """
    from blockexport.export.bundle.built_here import foreign_code
    from blockexport.export.bundle.manifest import read_manifest
    from blockexport.runtime.backends import backend_named

    if trust:
        return
    manifest, record = read_manifest(folder), backend_named(backend)
    for reason in foreign_code(folder, manifest, record.files_in(manifest)):
        console.say(f"warning: {reason}: run it where you trust them, and say so with --trust")
