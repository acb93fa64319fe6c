"""A bundle is made in a hidden folder beside its place and moved there whole, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from blockexport.export.bundle.manifest import Manifest, write_manifest
from blockexport.export.output.atomic_write import remove_abandoned, signals_deferred
from blockexport.export.output.disk import disk_errors, folders_made
from blockexport.export.output.hidden_names import OLD, PARTIAL, hidden_place, partial_path
from blockexport.export.output.ownership import remove_own
from blockexport.export.output.place import bundle_place, is_inside, why_taken
from blockexport.export.output.reservation import reserved
from blockexport.models.errors import UsageError


class Stage:
    """A bundle in the making, in `folder`. Leaving the `staged` block without `seal` or `reject` removes it."""

    def __init__(self, folder: Path, target: Path, inputs: Sequence[Path], *, force: bool) -> None:
        self.folder = folder
        self.target = target
        self._inputs = [Path(os.path.realpath(path)) for path in inputs]
        self._force = force

    def seal(self, manifest: Manifest) -> None:
        """Write the manifest and move the bundle to its place, where with `force` it replaces an older one.

        Raises:
            UsageError: something else is there by now. That stays, and the bundle is kept beside it.
        """
        write_manifest(self.folder, manifest)
        reason = why_taken(self.target, force=self._force)
        if reason is None:
            try:
                return _move(self.folder, self.target)
            except OSError as error:
                reason = f"cannot be written or replaced ({error.strerror or error})"
        aside = self._aside("new", replaced=False)
        os.rename(self.folder, aside)
        raise UsageError(f"{self.target} {reason}. It is as it was; the new bundle is kept as {aside}")

    def reject(self, manifest: Manifest) -> Path:
        """Move the bundle to `TARGET.rejected` for inspection, where it replaces an older bundle; returns the path.

        Where something is that is not a bundle alone, or an input of this very export, the path gets a number.
        """
        write_manifest(self.folder, manifest)
        aside = self._aside("rejected", replaced=True)
        _move(self.folder, aside)
        return aside

    def _aside(self, suffix: str, *, replaced: bool) -> Path:
        for number in count(1):
            place = self.target.with_name(f"{self.target.name}.{suffix}{'' if number == 1 else f'-{number}'}")
            if not os.path.lexists(place):
                return place
            if (
                replaced
                and why_taken(place, force=True) is None
                and not any(is_inside(path, place) for path in self._inputs)
            ):
                return place
        raise AssertionError


@contextmanager
def staged(target: Path, inputs: Sequence[Path] = (), *, force: bool) -> Iterator[Stage]:
    """A hidden folder that becomes `target`, which no other process can make meanwhile.

    Args:
        target: the bundle to make.
        inputs: what it is made from, which it must not replace.
        force: replace an older bundle, by what its manifest lists.

    Raises:
        UsageError: something is in the way, or another process is making the same bundle.
    """
    place = bundle_place(target, inputs, force=force)
    with folders_made(place.parent), reserved(place):
        bundle_place(target, inputs, force=force)  # the one who held it before may have finished meanwhile
        with _made(hidden_place(place, PARTIAL), place) as folder:
            yield Stage(folder, place, inputs, force=force)


@contextmanager
def addition(bundle: Path) -> Iterator[Path]:
    """A hidden folder inside of a bundle for what `add_files` is to add to it; it must not be replaced meanwhile.

    Raises:
        UsageError: another process is making or replacing the bundle.
    """
    with reserved(Path(os.path.realpath(bundle)), shared=True):
        with disk_errors(bundle):
            remove_abandoned(bundle)
        with _made(partial_path(bundle / "addition"), bundle) as folder:
            yield folder


@contextmanager
def _made(folder: Path, place: Path) -> Iterator[Path]:
    """A new folder for what is to come to `place`, removed with all that is still in it when the block is left."""
    with disk_errors(place):
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: Path, place: Path) -> None:
    """Rename `folder` to `place`. A bundle already there is renamed out of the way first, and then removed."""
    if not (place.is_dir() and any(place.iterdir())):
        os.rename(folder, place)  # which the system refuses when something has come to be there
        return
    old = hidden_place(place, OLD)
    with signals_deferred():
        os.rename(place, old)
        try:
            os.rename(folder, place)
        except OSError:
            os.rename(old, place)
            raise
    remove_own(old)
