"""`manifest.json`: what a bundle holds, what it was made from, and how its graph is to be fed.

Every file of a bundle is listed with its sha256; a derived file also names the files it was made from, by hash. The
manifest is written last, so a folder without one is not a bundle. It holds no date and no time: the same inputs and
versions give the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from blockexport.export.disk import disk_errors
from blockexport.export.partial import locked, partial_path
from blockexport.models.config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
ONNX_FILE = "model.onnx"
PT2_FILE = "model.pt2"
_TOOLS = ("blockexport", "torch", "onnx", "onnx-ir")


@dataclass(frozen=True)
class Port:
    """An input or output: its name, its type (`int64`, `float32`, ...), and its shape with symbolic axes by name.

    `aliases`, on an output, is the input whose buffer it may share: the cache is updated in place.
    """

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    aliases: str | None = None


@dataclass(frozen=True)
class FileEntry:
    """One file of a bundle. `made_from` maps names of files it was derived from to their sha256 at that time."""

    sha256: str
    bytes: int
    made_from: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceRecord:
    """The checkpoint a bundle was exported from; `digest` is `source_digest` of it at export time."""

    kind: str
    reference: str
    digest: str
    seed: int | None = None


@dataclass(frozen=True)
class Manifest:
    """The whole record. `files` are relative POSIX paths; the manifest itself is not among them."""

    config: ModelConfig
    source: SourceRecord
    precision: Precision
    max_sequence_length: int
    rope_table_rows: int
    headless: bool
    last_logits_only: bool
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights_digest: str
    files: dict[str, FileEntry]
    conversion: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    engines: dict[str, Any] = field(default_factory=dict)  # file name -> EngineEntry of trt_engine.py, as JSON
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def tool_versions() -> dict[str, str]:
    """Versions of the packages whose code shapes an artifact."""
    return {name: importlib.metadata.version(name) for name in _TOOLS}


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def combined_digest(digests: Iterable[str]) -> str:
    """One hex sha256 over several, in the given order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write or replace a bundle's manifest atomically. Changing that of a sealed bundle is `update_manifest`'s."""
    partial = write_beside_manifest(folder, manifest)
    try:
        os.replace(partial, folder / MANIFEST)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_beside_manifest(folder: Path, manifest: Manifest) -> Path:
    """A file that only has to be renamed to become the bundle's manifest.

    Raises:
        UsageError: the disk is full or cannot be written; no file is left then.
    """
    partial = partial_path(folder / MANIFEST)
    try:
        with disk_errors(folder):
            text = json.dumps(manifest.to_json(), indent=2, sort_keys=True) + "\n"
            partial.write_text(text, encoding="utf-8")
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return partial


def update_manifest(folder: Path, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Replace a sealed bundle's manifest by `change` of it; what other processes enter at the same time stays.

    Returns the new manifest.
    """
    with locked(folder):
        manifest = change(read_manifest(folder))
        write_manifest(folder, manifest)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle.

    Raises:
        UsageError: the folder is not a bundle, or one of a newer schema, or its manifest is damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise UsageError(
            f"{folder} is not a bundle: it has no {MANIFEST}. `blockexport onnx MODEL -o {folder}` makes one"
        )
    try:
        data = json.loads(path.read_text())
        version = data["schema_version"]
        if version != SCHEMA_VERSION:
            raise UsageError(
                f"{path} has schema version {version} and this blockexport reads {SCHEMA_VERSION}: "
                "export the bundle again, or use the blockexport that wrote it"
            )
        return _from_json(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged ({error!r}): export the bundle again") from error


def _from_json(data: dict[str, Any]) -> Manifest:
    values = dict(data)
    values["config"] = ModelConfig.from_json(values["config"])
    values["source"] = SourceRecord(**values["source"])
    values["precision"] = Precision(values["precision"])
    for key in ("inputs", "outputs"):
        values[key] = tuple(Port(**{**port, "shape": tuple(port["shape"])}) for port in values[key])
    values["files"] = {name: FileEntry(**entry) for name, entry in values["files"].items()}
    return Manifest(**values)
