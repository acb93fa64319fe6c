"""A bundle is built in a temporary folder beside its place and moved there whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from blockexport.export.bundle.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    read_manifest,
    sha256_of,
    write_beside_manifest,
    write_manifest,
)
from blockexport.export.output.atomic_write import locked, rename_together
from blockexport.export.output.disk import check_parents, disk_errors
from blockexport.models.errors import UsageError


class Stage:
    """A bundle in the making, in `folder`. Leaving the `staged` block without `seal` or `reject` removes it."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder = folder
        self.target = target

    def seal(self, manifest: Manifest) -> None:
        """Write the manifest and move the bundle to its place, replacing an older one in one step."""
        write_manifest(self.folder, manifest)
        _move(self.folder, self.target)

    def reject(self, manifest: Manifest) -> Path:
        """Move the bundle to `TARGET.rejected` instead, for inspection; returns that path. An older one is replaced."""
        write_manifest(self.folder, manifest)
        aside = self.target.with_name(f"{self.target.name}.rejected")
        _move(self.folder, aside)
        return aside


@contextmanager
def staged(target: Path, *, force: bool) -> Iterator[Stage]:
    """A temporary folder that becomes `target`.

    Raises:
        UsageError: something is in the way. With `force`, an existing bundle is replaced; anything else never is.
    """
    target = target.absolute()
    check_target(target, force=force)
    with disk_errors(target):
        created = _make_parents(target.parent)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        folder.chmod(0o755)
    sealed = False
    try:
        yield Stage(folder, target)
        sealed = not folder.exists()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not sealed:
            for parent in created:
                parent.rmdir()


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a target that something else occupies, before any work is done."""
    check_parents(target)
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir():
        raise UsageError(f"the output {target} is a file: -o names a folder that is to be made")
    if not any(target.iterdir()):
        return
    if not (target / MANIFEST).is_file():
        raise UsageError(f"the output folder {target} holds files that are not a bundle: name another, or empty it")
    if not force:
        raise UsageError(f"the output folder {target} already holds a bundle: use --force to replace it")


def file_entries(folder: Path, names: Iterable[str], made_from: dict[str, str] | None = None) -> dict[str, FileEntry]:
    """Manifest entries of files that lie in a bundle's folder."""
    return {
        name: FileEntry(sha256_of(folder / name), (folder / name).stat().st_size, made_from or {}) for name in names
    }


def add_files(
    folder: Path,
    files: Mapping[str, Path],
    made_from: Mapping[str, str],
    change: Callable[[Manifest], Manifest] = lambda manifest: manifest,
) -> Manifest:
    """Move files into a sealed bundle and enter them into its manifest, all or none; older ones are replaced.

    Other processes may be doing the same: what they enter stays.

    Args:
        folder: the bundle.
        files: names in the bundle, and where on its file system the files were made.
        made_from: the bundle's files that they derive from, with the sha256 of what was read.
        change: what else to change in the manifest.

    Returns:
        The new manifest.

    Raises:
        UsageError: something they derive from has changed by now, or the disk is full. The bundle is as before.
    """
    names = ", ".join(files)
    if not all(path.is_file() for path in files.values()):
        raise UsageError(f"{folder} was replaced while {names} was made, which went with it: make it again")
    entries = {name: FileEntry(sha256_of(path), path.stat().st_size, dict(made_from)) for name, path in files.items()}
    with locked(folder):
        manifest = read_manifest(folder)
        now = {name: entry.sha256 for name, entry in manifest.files.items()}
        if any(now.get(name) != sha256 for name, sha256 in made_from.items()):
            raise UsageError(
                f"{folder} was exported again while {names} was made, which is therefore of the older model and was "
                "not added: make it again"
            )
        updated = change(replace(manifest, files={**manifest.files, **entries}))
        beside = write_beside_manifest(folder, updated)
        try:
            moves = [(path, folder / name) for name, path in files.items()]
            rename_together([*moves, (beside, folder / MANIFEST)])
        finally:
            beside.unlink(missing_ok=True)
    return updated


def _make_parents(parent: Path) -> list[Path]:
    """Create missing parents; returns those created, innermost first, so that they can be taken back."""
    missing = [path for path in (parent, *parent.parents) if not path.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    return missing


def _move(folder: Path, target: Path) -> None:
    """Rename `folder` to `target`; a folder already there is renamed out of the way first and then removed."""
    if not target.exists():
        os.rename(folder, target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    os.rename(target, old)
    try:
        os.rename(folder, target)
    except OSError:
        os.rename(old, target)
        raise
    shutil.rmtree(old)
