"""Which engine of a bundle fits this machine, and whether its file is what the manifest says.

All of it before TensorRT opens the file, whose own words come later and say less.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from blockexport.export.bundle.engine_entry import EngineEntry, entry_of
from blockexport.export.bundle.file_check import changed_sources, check_file
from blockexport.export.bundle.manifest import Manifest
from blockexport.export.bundle.trt_library import TENSORRT_RTX, number_of
from blockexport.models.errors import UsageError

_log = logging.getLogger(__name__)


def fitting_engines(folder: Path, manifest: Manifest, backend: str, capability: str | None) -> list[str]:
    """The file names of the engines of `backend` for a GPU of compute capability `capability`, the best first.

    The best is built for the fewest compute capabilities, and then for the most rows. One whose entry cannot be read
    stands before the others: it may have been better.

    Args:
        folder: the bundle, for messages.
        manifest: the bundle's.
        backend: `tensorrt` or `tensorrt-rtx`.
        capability: such as "8.9"; None where there is no GPU, which any engine passes.

    Raises:
        UsageError: there is no engine of this backend, or none for this GPU.
    """
    damaged: list[str] = []
    engines: dict[str, EngineEntry] = {}
    for name in sorted(manifest.engines):
        try:
            entry = entry_of(manifest, name)
        except UsageError:
            damaged.append(name)
            continue
        if entry.backend == backend:
            engines[name] = entry
    build = f"blockexport trt {shlex.quote(str(folder))} --backend {backend}"
    if not engines and not damaged:
        raise UsageError(f"{folder} holds no {backend} engine: {build} builds one")
    fitting = [name for name, entry in engines.items() if capability is None or serves(entry, capability)]
    if not fitting and not damaged:
        option = f" --compute-capability {capability}" if backend == TENSORRT_RTX else " on this machine"
        raise UsageError(
            f"{folder} holds {backend} engines for compute capability {', '.join(targets_of(engines.values()))} and "
            f"this GPU has {capability}: {build}{option} builds one for it"
        )
    return damaged + sorted(fitting, key=lambda name: _rank(engines[name]))


def _rank(entry: EngineEntry) -> tuple[bool, int, int]:
    """Lower is better; equals stay in the order of their names."""
    rows = max(profile.batch_size[2] for profile in entry.profiles)
    return _is_for_ampere_and_later(entry), len(entry.compute_capabilities), -rows


def targets_of(entries: Iterable[EngineEntry]) -> list[str]:
    """Every compute capability that some engine was built for, in ascending order."""
    return sorted({target for entry in entries for target in entry.compute_capabilities}, key=number_of)


def whole_engines(
    folder: Path, manifest: Manifest, fitting: Iterable[str], version: str
) -> Iterator[tuple[Path, EngineEntry]]:
    """Those of `fitting_engines` that pass `check_engine`, in that order; each is looked at when it is asked for.

    What is wrong with others is logged as a warning if any passes.

    Raises:
        UsageError: none passes, with the reason for each.
    """
    refused: list[str] = []
    passed = False
    for name in fitting:
        try:
            entry = entry_of(manifest, name)
            path = check_engine(folder, manifest, name, entry, version)
        except UsageError as error:
            refused.append(str(error))
            continue
        for reason in refused:
            _log.warning("%s. %s is used instead", reason, path)
        refused, passed = [], True
        yield path, entry
    if not passed:
        raise UsageError(". And ".join(refused))
    for reason in refused:
        _log.warning("%s", reason)


def serves(entry: EngineEntry, capability: str) -> bool:
    """Whether an engine runs on a GPU of this compute capability."""
    if _is_for_ampere_and_later(entry):
        return number_of(capability) >= (8, 0)
    return capability in entry.compute_capabilities


def _is_for_ampere_and_later(entry: EngineEntry) -> bool:
    return bool(entry.options.get("hardware_compatibility") == "ampere-plus")


def check_engine(
    folder: Path, manifest: Manifest, name: str, entry: EngineEntry, version: str | None, *, read: bool = True
) -> Path:
    """The path of an engine that is whole, up to date, and of this TensorRT version.

    Args:
        folder: the bundle.
        manifest: the bundle's.
        name: the engine's file name in it.
        entry: the engine's entry.
        version: of the installed backend; None where there is none to load it.
        read: compare the file's content.

    Raises:
        UsageError: the file is missing, cut short, another one, made from an older graph or weights, or of a version
            that the installed TensorRT does not load.
    """
    path, listed = folder / name, manifest.files.get(name)
    targets = "".join(f" --compute-capability {target}" for target in entry.compute_capabilities)
    option = targets if entry.backend == TENSORRT_RTX else ""
    again = f"blockexport trt {shlex.quote(str(folder))} --backend {entry.backend}{option} builds it again"
    if listed is None:
        raise UsageError(f"{path} is missing from the manifest's files: {again}")
    if read:
        check_file(path, listed, whole=True, remedy=f"{again}, or copy it whole")
    outdated = changed_sources(manifest, listed.made_from)
    if outdated or entry.weights_digest != manifest.weights_digest:
        raise UsageError(f"{path} was built from another {', '.join(outdated) or 'set of weights'}: {again}")
    newer_is_fine = bool(entry.options.get("version_compatible"))
    if version not in (None, entry.version) and not (newer_is_fine and number_of(version) >= number_of(entry.version)):
        raise UsageError(
            f"{path} was built by {entry.backend} {entry.version} and {version} is installed, which does not load it: "
            f"{again}, or install {entry.backend}=={entry.version}"
        )
    return path
