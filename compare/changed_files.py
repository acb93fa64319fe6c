"""Whether the files that were judged are those that the bundle's manifest lists. It bears on no verdict: what is
judged is the file as it is, and a report that says so is what a hand-made change deserves."""

from __future__ import annotations

from pathlib import Path

from blockexport.export.bundle.file_check import check_file
from blockexport.export.bundle.manifest import ONNX_FILE, FileEntry, Manifest
from blockexport.export.tokenizer.tokenizer_files import TOKENIZER
from blockexport.models.errors import UsageError
from blockexport.runtime.backends import backend_named

_WITH_WEIGHTS = (ONNX_FILE,)  # the others hold their own


def changed_files(folder: Path, manifest: Manifest, backend: str) -> tuple[str, ...]:
    """One sentence on the files of `backend` that are not the manifest's by size or SHA-256, or none.

    An engine is not looked at here: opening it refuses another file than the manifest's.
    """
    judged = backend_named(backend).file
    names = [] if judged is None else [judged]
    if judged in _WITH_WEIGHTS and judged in manifest.files:
        names += manifest.files[judged].made_from
    if TOKENIZER in manifest.files:  # it chose the tokens; one that was added later is listed nowhere
        names.append(TOKENIZER)
    changed = [name for name in names if not _is_listed(folder / name, manifest.files.get(name))]
    if not changed:
        return ()
    return (
        f"the content of {' and '.join(changed)} is not what the manifest lists (by size or SHA-256): judged is what "
        "lies there now",
    )


def _is_listed(path: Path, entry: FileEntry | None) -> bool:
    if entry is None:
        return False
    try:
        check_file(path, entry, whole=True)
    except UsageError:
        return False
    return True
