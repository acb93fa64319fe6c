"""Is a file of a bundle the one that its manifest lists? Whole, or by a sample that takes milliseconds.

A decoder compares a sample each time it opens a bundle: weights of another model have the same size and the same
names, and would load without a word. The C++ runtime does the same (cpp/src/manifest.cpp).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from blockexport.export.bundle.manifest import FileEntry, Manifest, sha256_of
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import open_regular

Verify = Literal["sample", "whole", "nothing"]
"""How much of a file is read to tell it from another."""

_PAGE = 4096
_FIRST, _SPREAD = 16, 240  # pages
_REMEDY = "copy the whole bundle again, or export it again"


def sampled_sha256_of(path: Path) -> str:
    """Hex SHA-256 of a sample of a file: its first 16 pages of 4096 bytes, and 240 spread evenly over the rest.

    The last page is among them. A file of at most 1 MiB is taken whole.
    """
    pages = -(-path.stat().st_size // _PAGE)
    spread = (_FIRST - 1 + i * (pages - _FIRST) // _SPREAD for i in range(1, _SPREAD + 1))
    sample = range(pages) if pages <= _FIRST + _SPREAD else (*range(_FIRST), *spread)
    digest = hashlib.sha256()
    with open_regular(path) as file:
        for page in sample:
            file.seek(page * _PAGE)
            digest.update(file.read(_PAGE))
    return digest.hexdigest()


def file_entry(path: Path, made_from: Mapping[str, str] | None = None, *, sha256: str | None = None) -> FileEntry:
    """The manifest's entry of a file; `sha256` where it is known already."""
    return FileEntry(sha256 or sha256_of(path), path.stat().st_size, sampled_sha256_of(path), dict(made_from or {}))


def changed_sources(manifest: Manifest, made_from: Mapping[str, str]) -> list[str]:
    """Those of the files that something was made from, each with its sha256 then, that the manifest has otherwise now,
    or not at all."""
    now = {name: entry.sha256 for name, entry in manifest.files.items()}
    return [name for name, sha256 in made_from.items() if now.get(name) != sha256]


def check_artifact(folder: Path, manifest: Manifest, name: str, verify: Verify) -> None:
    """Compare a file of a bundle, and the files of weights that it was made from and reads, with the manifest.

    Raises:
        UsageError: names the first file that is missing, or is another one.
    """
    if verify == "nothing" or name not in manifest.files:
        return
    for part in (name, *manifest.files[name].made_from):
        check_file(folder / part, manifest.files[part], whole=verify == "whole")


def check_file(path: Path, listed: FileEntry, *, whole: bool, remedy: str = _REMEDY) -> None:
    """Compare one file with its entry in the manifest: the size, and the SHA-256 of all or of a sample.

    Args:
        path: the file.
        listed: its entry.
        whole: read all of it.
        remedy: what to do about another file, as a clause.

    Raises:
        UsageError: it is missing, or another file.
    """
    if not path.is_file():
        raise UsageError(f"{path} is missing, and the manifest lists it: {remedy}")
    size = path.stat().st_size
    if size != listed.bytes:
        raise UsageError(f"{path} has {size} bytes and the manifest says {listed.bytes}: {remedy}")
    digest, expected = (sha256_of(path), listed.sha256) if whole else (sampled_sha256_of(path), listed.sampled_sha256)
    if digest != expected:
        sample = "" if whole else " in its sampled pages"
        raise UsageError(
            f"{path} has the SHA-256 {digest}{sample} and the manifest says {expected}; it is another file, or was "
            f"changed or damaged: {remedy}"
        )
