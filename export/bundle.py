"""A bundle is built in a temporary folder beside its place and moved there whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from blockexport.export.disk import check_parents, disk_errors
from blockexport.export.manifest import MANIFEST, FileEntry, Manifest, sha256_of, update_manifest, write_manifest
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


def add_files(folder: Path, names: Iterable[str], made_from: Iterable[str]) -> Manifest:
    """Enter files written into a sealed bundle into its manifest; `made_from` names the files they derive from."""
    made, origin = tuple(names), tuple(made_from)

    def enter(manifest: Manifest) -> Manifest:
        sources = {name: manifest.files[name].sha256 for name in origin}
        return replace(manifest, files={**manifest.files, **file_entries(folder, made, sources)})

    return update_manifest(folder, enter)


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
