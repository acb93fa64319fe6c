"""How an engine gets into its bundle: made beside its place, and entered into the manifest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from blockexport.export.bundle.bundle import add_files
from blockexport.export.bundle.engine_entry import EngineEntry, entry_of
from blockexport.export.bundle.file_check import check_artifact
from blockexport.export.bundle.manifest import MANIFEST, ONNX_FILE, Manifest
from blockexport.export.bundle.own_verdict import require_not_bad
from blockexport.export.bundle.stage import addition
from blockexport.export.bundle.trt_library import ascending
from blockexport.export.output.disk import check_free_space
from blockexport.export.preflight import require_memory
from blockexport.export.tensorrt.trt_adapter import Adapter
from blockexport.export.tensorrt.trt_build import Built, Request
from blockexport.models.errors import UsageError
from blockexport.models.wording import size

MEMORY = (
    3.0  # what a build takes to its weights, at least: 4.0 was measured (SmolLM2-135M in fp16, RTX 1.7, without a GPU)
)
ROOM = 1.1  # an engine with weights to its weights, at least; small models have more overhead


def engine_entry(adapter: Adapter, request: Request, built: Built) -> EngineEntry:
    """What the manifest is to say of an engine that was built by `adapter`."""
    manifest = request.manifest
    return EngineEntry(
        backend=adapter.name,
        version=adapter.version,
        compute_capabilities=ascending(request.targets),
        precision=manifest.precision,
        profiles=tuple(request.profiles),
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        weights_digest=manifest.weights_digest,
        options=request.options.to_json(),
        audit=asdict(built.audit),
        rebuild=adapter.rebuild_note,
    )


def check_sources(folder: Path, manifest: Manifest) -> None:
    """Refuse to build from a graph or weights that are not those of the manifest, or that were found bad.

    Raises:
        UsageError: a file is missing or has changed.
        RejectedBundleError: the bundle was judged and found bad.
    """
    require_not_bad(folder, manifest)
    sources_of(folder, manifest)
    check_artifact(folder, manifest, ONNX_FILE, "whole")


def check_memory(folder: Path, manifest: Manifest, max_memory: int | None) -> None:
    """Raise NotJudgedError where a build takes more memory than there is, or than `max_memory`, for certain."""
    weights = sum(manifest.files[source].bytes for source in sources_of(folder, manifest))
    needed = int(weights * MEMORY)
    said = f"weights of {size(weights)} take at least {size(needed)} of memory to build an engine from"
    require_memory(needed, said, max_memory, "build it where there is more")


def sources_of(folder: Path, manifest: Manifest) -> dict[str, str]:
    """The graph and the files of its weights, each with its sha256.

    Raises:
        UsageError: the manifest lacks one of them.
    """
    graph = manifest.files.get(ONNX_FILE)
    names = (ONNX_FILE, *(() if graph is None else graph.made_from))
    for name in names:
        if name not in manifest.files:
            raise UsageError(
                f"{folder / MANIFEST} does not list {name}, which an engine is built from: export the bundle again"
            )
    return {name: manifest.files[name].sha256 for name in names}


@contextmanager
def staged_engine(folder: Path, manifest: Manifest, name: str, *, weightless: bool = False) -> Iterator[Path]:
    """An empty file to write the engine `name` into and to hand to `place_engine`; one that was not placed is removed.

    Args:
        folder: the bundle.
        manifest: the bundle's.
        name: the engine's, from `engine_name`.
        weightless: the engine is to have no weights, and hence needs little room.

    Raises:
        UsageError: something is in the way, the disk has no room for the engine, the manifest's entry of another engine
            is damaged, or another process is making or replacing the bundle.
    """
    for other in manifest.engines.keys() - {name}:
        entry_of(manifest, other)
    path = folder / name
    if os.path.lexists(path.parent) and not path.parent.is_dir():
        raise UsageError(f"{path.parent} is no folder and engines are to lie there: remove it")
    if path.is_dir():
        raise UsageError(f"{path} is a folder and the engine is to lie there: remove it")
    if not weightless:
        weights = sum(manifest.files[source].bytes for source in sources_of(folder, manifest))
        check_free_space(folder, int(weights * ROOM))
    with addition(folder) as hidden:
        partial = hidden / path.name
        partial.touch()
        yield partial


def place_engine(folder: Path, partial: Path, name: str, entry: EngineEntry, built_from: Manifest) -> Manifest:
    """Put a finished engine into its place and its entry into the manifest; an older one is replaced.

    Args:
        folder: the bundle.
        partial: the engine, where `staged_engine` said.
        name: the engine's, from `engine_name`.
        entry: from `engine_entry`.
        built_from: the manifest that the build began with.

    Returns:
        The new manifest, with all that other processes have entered meanwhile.

    Raises:
        UsageError: the bundle has another graph or other weights by now, or the disk is full. The bundle is as before.
    """

    def enter(manifest: Manifest) -> Manifest:
        return replace(manifest, engines={**manifest.engines, name: asdict(entry)})

    return add_files(folder, {name: partial}, sources_of(folder, built_from), enter)
