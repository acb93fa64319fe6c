"""Entries of files in a manifest, and files that are added to a sealed bundle, all or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from blockexport.export.bundle.built_here import note_built_here
from blockexport.export.bundle.file_check import changed_sources, file_entry
from blockexport.export.bundle.manifest import MANIFEST, FileEntry, Manifest, read_manifest
from blockexport.export.bundle.sbom import with_sbom
from blockexport.export.output.atomic_write import locked, partial_file, rename_together
from blockexport.export.output.disk import disk_errors
from blockexport.export.output.ownership import SBOM
from blockexport.models.errors import UsageError


def file_entries(folder: Path, names: Iterable[str], made_from: dict[str, str] | None = None) -> dict[str, FileEntry]:
    """Manifest entries of files in a bundle's folder."""
    return {name: file_entry(folder / name, made_from) for name in names}


def add_files(
    folder: Path,
    files: Mapping[str, Path],
    made_from: Mapping[str, str],
    change: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    removed: Iterable[str] = (),
) -> Manifest:
    """Move files into a sealed bundle and enter them into its manifest, all or none; older ones are replaced.

    Other processes may be doing the same: what they enter stays.

    Args:
        folder: the bundle.
        files: names in the bundle, and where on its file system the files were made, as in an `addition`.
        made_from: the bundle's files that they derive from, with the sha256 of what was read.
        change: what else to change in the manifest.
        removed: names of files that go, and that `change` takes out of the manifest.

    Returns:
        The new manifest.

    Raises:
        UsageError: something they derive from has changed by now, or the disk is full. The bundle is as before.
    """
    names = ", ".join(files)
    if not all(path.is_file() for path in files.values()):
        raise UsageError(f"{folder} was replaced while {names} was made, which went with it: make it again")
    entries = {name: file_entry(path, made_from) for name, path in files.items()}
    with locked(folder):
        manifest = read_manifest(folder)
        if changed_sources(manifest, made_from):
            raise UsageError(
                f"{folder} was exported again while {names} was made, which is therefore of the older model and was "
                "not added: make it again"
            )
        updated = change(replace(manifest, files={**manifest.files, **entries}))
        places = [folder / name for name in files]
        with disk_errors(folder), partial_file(folder / SBOM) as bill, partial_file(folder / MANIFEST) as beside:
            updated = with_sbom(folder, updated, bill.name)
            beside.write_bytes(updated.to_bytes())
            moves = [*zip(files.values(), places, strict=True), (bill, folder / SBOM), (beside, folder / MANIFEST)]
            rename_together(folder, moves, [folder / name for name in removed])
    note_built_here(updated, files)
    return updated
