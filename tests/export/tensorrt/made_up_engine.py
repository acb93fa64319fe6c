"""Engines of any bytes for any GPU: for tests of where engines lie and which is taken, and not of what is in them."""

from __future__ import annotations

from pathlib import Path

from blockexport.export.bundle.engine_entry import EngineEntry, engine_name
from blockexport.export.bundle.manifest import Manifest, read_manifest
from blockexport.export.tensorrt.trt_engine import place_engine, staged_engine
from blockexport.export.tensorrt.trt_network import make_profiles

VERSION = "1.7"
ENGINE = b"an engine" * 100


def made_up_entry(
    manifest: Manifest, *targets: str, rows: int = 2, backend: str = "tensorrt-rtx", hardware: str | None = None
) -> EngineEntry:
    """What the manifest says of an engine for `targets`, or for 8.9."""
    return EngineEntry(
        backend,
        VERSION,
        targets or ("8.9",),
        manifest.precision,
        make_profiles(rows, 8),
        manifest.inputs,
        manifest.outputs,
        manifest.weights_digest,
        {} if hardware is None else {"hardware_compatibility": hardware},
        {},
        "never",
    )


def add_made_up_engine(folder: Path, entry: EngineEntry | None = None, content: bytes = ENGINE) -> tuple[str, Manifest]:
    """Put `content` into a bundle as an engine; its name and the bundle's new manifest."""
    manifest = read_manifest(folder)
    entry = entry or made_up_entry(manifest)
    name = engine_name(entry.backend, entry.compute_capabilities, entry.precision)
    with staged_engine(folder, manifest, name) as partial:
        partial.write_bytes(content)
        return name, place_engine(folder, partial, name, entry, manifest)
