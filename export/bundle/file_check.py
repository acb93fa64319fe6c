"""Is a file of a bundle the one that its manifest lists? Whole, or by a sample that takes milliseconds.

A decoder compares a sample each time it opens a bundle: weights of another model have the same size and the same
names, and would load without a word. The C++ runtime does the same (cpp/src/manifest.cpp).
"""

from __future__ import annotations

import hashlib
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Literal

from blockexport.export.bundle.manifest import FileEntry, Manifest, sha256_of
from blockexport.models.errors import UsageError
from blockexport.models.progress import Progress, silent
from blockexport.models.regular_file import kind_of, open_regular

Verify = Literal["sample", "whole", "nothing"]
"""How much of a file is read to tell it from another."""

_PAGE = 4096
_FIRST, _SPREAD = 16, 240  # pages
_THREADS = 2
_CHUNK = 1 << 20  # bytes read at a time
_TICK = 0.1  # seconds between two words on progress
REMEDY = "copy the whole bundle again, or export it again"


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


def check_file(path: Path, listed: FileEntry, *, whole: bool, remedy: str = REMEDY) -> None:
    """Compare one file with its entry in the manifest: the size, and the SHA-256 of all or of a sample.

    Args:
        path: the file.
        listed: its entry.
        whole: read all of it.
        remedy: what to do about another file, as a clause.

    Raises:
        UsageError: it is missing, or another file.
    """
    reason = _other_size(path, listed)
    if reason is None and whole:
        reason = _other_content(path, sha256_of(path), listed.sha256)
    elif reason is None:
        reason = _other_content(path, sampled_sha256_of(path), listed.sampled_sha256, " in its sampled pages")
    if reason is not None:
        raise UsageError(f"{reason}: {remedy}")


def wrong_files(folder: Path, manifest: Manifest, progress: Progress = silent) -> Iterator[str]:
    """What is wrong with the files that a bundle's manifest lists, each read whole, as sentences without their full
    stop: one is missing, is another one, or was made from another than the bundle has.

    Raises:
        UsageError: a file may not be read.
    """
    reasons = {name: _other_size(folder / name, entry) for name, entry in manifest.files.items()}
    there = [name for name, reason in reasons.items() if reason is None]
    for name, digest in sha256_of_each(folder, there, progress).items():
        path, entry = folder / name, manifest.files[name]
        reasons[name] = _other_content(path, digest, entry.sha256)
        if reasons[name] is None:
            sampled = sampled_sha256_of(path)
            reasons[name] = _other_content(path, sampled, entry.sampled_sha256, " in its sampled pages")
    for name, entry in manifest.files.items():
        if (reason := reasons[name]) is not None:
            yield reason
        for source in changed_sources(manifest, entry.made_from):
            yield f"{folder / name} was made from another {source} than the bundle holds"


def sha256_of_each(folder: Path, names: Sequence[str], progress: Progress = silent) -> dict[str, str]:
    """Hex SHA-256 of files, two at a time: hashing takes longer than reading, and lets another thread run.

    Raises:
        UsageError: a file may not be read.
    """
    sizes = {name: (folder / name).stat().st_size for name in names}
    total, read, ended = sum(sizes.values()), dict.fromkeys(names, 0), threading.Event()

    def hashed(name: str) -> str:
        digest, buffer = hashlib.sha256(), bytearray(_CHUNK)
        with open_regular(folder / name) as file:
            while not ended.is_set() and (count := file.readinto(buffer)):
                digest.update(memoryview(buffer)[:count])
                read[name] += count
        return digest.hexdigest()

    with ThreadPoolExecutor(_THREADS) as workers:
        # The largest first: the last one to begin should not be the longest.
        futures = {name: workers.submit(hashed, name) for name in sorted(names, key=lambda name: -sizes[name])}
        try:
            waiting: Set[Future[str]] = set(futures.values())
            while waiting:
                progress("MiB", sum(read.values()) >> 20, total >> 20)
                done, waiting = wait(waiting, _TICK, FIRST_EXCEPTION)
                for future in done:
                    future.result()
            return {name: futures[name].result() for name in names}
        finally:
            ended.set()  # an interrupt waits for a chunk, and not for a file


def _other_size(path: Path, listed: FileEntry) -> str | None:
    try:
        found = path.stat()
    except OSError:
        return f"{path} is missing, and the manifest lists it"
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is {kind_of(found.st_mode)}, and the manifest lists a file of that name"
    size = found.st_size
    return None if size == listed.bytes else f"{path} has {size} bytes and the manifest says {listed.bytes}"


def _other_content(path: Path, digest: str, listed: str, what: str = "") -> str | None:
    if digest == listed:
        return None
    return (
        f"{path} has the SHA-256 {digest}{what} and the manifest says {listed}; it is another file, or was changed or "
        "damaged"
    )
