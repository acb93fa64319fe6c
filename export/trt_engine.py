"""Engines in a bundle: where they lie, and what the manifest says of them.

An engine is `engines/<backend>-sm<capability>[-sm<capability> ...]-<precision>.engine`. The manifest lists it like any
file (sha256, and the hashes of the graph and weights it was made from) and describes it under `engines`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from blockexport.export.bundle import file_entries
from blockexport.export.manifest import ONNX_FILE, Manifest, Port, sha256_of, write_manifest
from blockexport.export.trt_adapter import Adapter, BuildOptions
from blockexport.export.trt_build import Built
from blockexport.export.trt_network import Profile
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision

ENGINES = "engines"


@dataclass(frozen=True)
class EngineEntry:
    """What a user of an engine has to know; sha256, length and origin are in the manifest's entry of the file."""

    backend: str
    version: str
    compute_capabilities: tuple[str, ...]
    precision: Precision
    profiles: tuple[Profile, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights_digest: str
    options: dict[str, Any]
    audit: dict[str, Any]
    rebuild: str

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> EngineEntry:
        """The inverse of `to_json`; unknown or missing keys raise TypeError or KeyError."""
        values = dict(data)
        values["precision"] = Precision(values["precision"])
        values["compute_capabilities"] = tuple(values["compute_capabilities"])
        values["profiles"] = tuple(
            Profile(item["name"], tuple(item["batch_size"]), tuple(item["sequence_length"]))
            for item in values["profiles"]
        )
        for key in ("inputs", "outputs"):
            values[key] = tuple(Port(**{**port, "shape": tuple(port["shape"])}) for port in values[key])
        return cls(**values)


def engine_name(backend: str, targets: Iterable[str], precision: Precision) -> str:
    """Where an engine lies in its bundle."""
    generations = "-".join(f"sm{target.replace('.', '')}" for target in targets)
    return f"{ENGINES}/{backend}-{generations}-{precision.value}.engine"


def engines_of(manifest: Manifest) -> dict[str, EngineEntry]:
    """The engines of a bundle by file name.

    Raises:
        UsageError: an entry is damaged.
    """
    try:
        return {name: EngineEntry.from_json(data) for name, data in manifest.engines.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the manifest's list of engines is damaged ({error!r}): build the engine again") from error


def check_sources(folder: Path, manifest: Manifest) -> None:
    """Refuse to build from a graph or weights that are not those of the manifest.

    Raises:
        UsageError: a file is missing or has changed.
    """
    for name in (ONNX_FILE, *manifest.files[ONNX_FILE].made_from):
        path, entry = folder / name, manifest.files[name]
        if not path.is_file() or path.stat().st_size != entry.bytes or sha256_of(path) != entry.sha256:
            raise UsageError(
                f"{path} is missing or not the file that the manifest lists: an engine of it would prove nothing. "
                "Export the bundle again"
            )


def write_engine(
    folder: Path,
    manifest: Manifest,
    adapter: Adapter,
    targets: Sequence[str],
    profiles: Sequence[Profile],
    options: BuildOptions,
    built: Built,
) -> tuple[str, Manifest]:
    """Put an engine into a bundle and its entry into the manifest, each in one step; an older one is replaced.

    Returns the engine's name in the bundle and the new manifest.
    """
    name = engine_name(adapter.name, targets, manifest.precision)
    _write_file(folder / name, built.engine)
    entry = EngineEntry(
        backend=adapter.name,
        version=adapter.version,
        compute_capabilities=tuple(targets),
        precision=manifest.precision,
        profiles=tuple(profiles),
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        weights_digest=manifest.weights_digest,
        options=options.to_json(),
        audit=built.audit.to_json(),
        rebuild=adapter.rebuild_note,
    )
    sources = (ONNX_FILE, *manifest.files[ONNX_FILE].made_from)
    made_from = {source: manifest.files[source].sha256 for source in sources}
    updated = replace(
        manifest,
        files={**manifest.files, **file_entries(folder, [name], made_from)},
        engines={**manifest.engines, name: entry.to_json()},
    )
    write_manifest(folder, updated)
    return name, updated


def _write_file(path: Path, content: Any) -> None:
    created = not path.parent.exists()
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        if created:
            path.parent.rmdir()
        raise
