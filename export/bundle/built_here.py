"""Code in a bundle, and whether this user built it on this machine.

Loading a program of PyTorch's, a compiled package or an engine runs what its maker put there. A hash says that it is
what the manifest lists, and not who made it: so the SHA-256 of what is built here is noted, as an empty file of that
name in the user's own folder for such things (XDG Base Directory Specification: `$XDG_STATE_HOME`). Nobody else writes
there, and a bundle that comes from elsewhere holds other bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from blockexport.export.bundle.engine_entry import ENGINES
from blockexport.export.bundle.manifest import AOTI_FILE, PT2_FILE, Manifest, sha256_of

_CODE = {PT2_FILE: "a pickle, which can run anything", AOTI_FILE: "machine code"}
_ENGINE = "code for the GPU"


def what_it_runs(name: str) -> str | None:
    """What loading a file of a bundle runs; None of one that is only data."""
    return _ENGINE if name.startswith(f"{ENGINES}/") else _CODE.get(name)


def note_built_here(manifest: Manifest, names: Iterable[str]) -> None:
    """Note those of a bundle's files that are code; where the note cannot be kept, a user is warned later."""
    for name in names:
        if what_it_runs(name) is not None and name in manifest.files:
            with suppress(OSError, RuntimeError):
                place = _noted(manifest.files[name].sha256)
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                place.touch()


def foreign_code(folder: Path, manifest: Manifest, names: Iterable[str]) -> list[str]:
    """A sentence without its full stop on each of a bundle's files that runs code and was not built here.

    A file that the bundle lacks is left to whoever opens it.
    """
    return [
        f"{folder / name} was not built here, and to load it runs {runs} that its maker put there"
        for name in names
        if (runs := what_it_runs(name)) is not None
        and (folder / name).is_file()
        and not _is_noted(folder, manifest, name)
    ]


def _is_noted(folder: Path, manifest: Manifest, name: str) -> bool:
    listed = manifest.files.get(name)
    try:
        return listed is not None and _noted(listed.sha256).is_file() and sha256_of(folder / name) == listed.sha256
    except (OSError, RuntimeError):
        return False


def _noted(sha256: str) -> Path:
    """Where the note on a file lies. Raises RuntimeError where this user has no home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if Path(state).is_absolute() else Path.home() / ".local/state") / "blockexport/built" / sha256
