"""Which engine of a bundle fits this machine, and whether its file is what the manifest says.

All of it before TensorRT opens the file, whose own words come later and say less.
"""

from __future__ import annotations

from pathlib import Path

from blockexport.export.manifest import Manifest, sha256_of
from blockexport.export.trt_adapter import TENSORRT_RTX
from blockexport.export.trt_engine import EngineEntry, engines_of
from blockexport.models.errors import UsageError


def choose_engine(folder: Path, manifest: Manifest, backend: str, capability: str | None) -> tuple[str, EngineEntry]:
    """The engine of `backend` for a GPU of compute capability `capability`: its file's name and its entry.

    Args:
        folder: the bundle, for messages.
        manifest: the bundle's.
        backend: `tensorrt` or `tensorrt-rtx`.
        capability: such as "8.9"; None where there is no GPU, which any engine passes.

    Raises:
        UsageError: there is no engine of this backend, or none for this GPU.
    """
    engines = {name: entry for name, entry in engines_of(manifest).items() if entry.backend == backend}
    build = f"blockexport trt {folder} --backend {backend}"
    if not engines:
        raise UsageError(f"{folder} holds no {backend} engine: {build} builds one")
    fitting = {name: entry for name, entry in engines.items() if capability is None or serves(entry, capability)}
    if not fitting:
        built_for = sorted({target for entry in engines.values() for target in entry.compute_capabilities})
        option = f" --compute-capability {capability}" if backend == TENSORRT_RTX else " on this machine"
        raise UsageError(
            f"{folder} holds {backend} engines for compute capability {', '.join(built_for)} and this GPU has "
            f"{capability}: {build}{option} builds one for it"
        )
    name = sorted(fitting)[0]
    return name, fitting[name]


def serves(entry: EngineEntry, capability: str) -> bool:
    """Whether an engine runs on a GPU of this compute capability."""
    if entry.options.get("hardware_compatibility") == "ampere-plus":
        return _number(capability) >= (8, 0)
    return capability in entry.compute_capabilities


def check_engine(folder: Path, manifest: Manifest, name: str, entry: EngineEntry, version: str) -> Path:
    """The path of an engine that is whole, up to date, and of this TensorRT version.

    Args:
        folder: the bundle.
        manifest: the bundle's.
        name: the engine's file name in it.
        entry: the engine's entry.
        version: of the installed backend.

    Raises:
        UsageError: the file is missing, cut short, another one, made from an older graph or weights, or of a version
            that the installed TensorRT does not load.
    """
    path, listed = folder / name, manifest.files.get(name)
    targets = "".join(f" --compute-capability {target}" for target in entry.compute_capabilities)
    option = targets if entry.backend == TENSORRT_RTX else ""
    again = f"blockexport trt {folder} --backend {entry.backend}{option} builds it again"
    if listed is None or not path.is_file():
        raise UsageError(f"{path} is missing: {again}")
    size = path.stat().st_size
    if size != listed.bytes:
        raise UsageError(f"{path} has {size} bytes and the manifest says {listed.bytes}: {again}, or copy it whole")
    if sha256_of(path) != listed.sha256:
        raise UsageError(f"{path} is not the file that the manifest lists (another sha256): {again}")
    outdated = [source for source, sha256 in listed.made_from.items() if manifest.files[source].sha256 != sha256]
    if outdated or entry.weights_digest != manifest.weights_digest:
        raise UsageError(f"{path} was built from another {', '.join(outdated) or 'set of weights'}: {again}")
    newer_is_fine = bool(entry.options.get("version_compatible"))
    if version != entry.version and not (newer_is_fine and _number(version) >= _number(entry.version)):
        raise UsageError(
            f"{path} was built by {entry.backend} {entry.version} and {version} is installed, which does not load it: "
            f"{again}, or install {entry.backend}=={entry.version}"
        )
    return path


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
