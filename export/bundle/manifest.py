"""`manifest.json`: what a bundle holds, what it was made from, and how its graph is to be fed.

Every file of a bundle is listed with its sha256; a derived file also names the files it was made from, by hash. The
manifest is written last, so a folder without one is not a bundle. It holds no date and no time: the same inputs and
versions give the same bytes. `manifest_sha256` in it is that of the file without the line that says so.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from blockexport.export.bundle.embedding import EmbeddingRecord
from blockexport.export.output.atomic_write import finish_moves, replace_file
from blockexport.export.output.ownership import MANIFEST as MANIFEST
from blockexport.models.config.config_fields import MAX_LAYERS
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.interface import Ends, Interface, Port
from blockexport.models.precision import Precision
from blockexport.models.quantisation import Quantisation
from blockexport.models.regular_file import is_text, is_there, open_regular, read_bytes, require_utf8
from blockexport.models.strict_json import read_record

SCHEMA_VERSION = 2
ONNX_FILE = "model.onnx"
NONPAD_FILE = "model.nonpad.onnx"  # the same decoder without masks, where a bundle holds both forms
GRAPHS = (ONNX_FILE, NONPAD_FILE)
PT2_FILE = "model.pt2"
AOTI_FILE = "model.aoti.pt2"
OWN_DIGEST = "manifest_sha256"
_SHA256 = re.compile("[0-9a-f]{64}")
_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
)


@dataclass(frozen=True)
class FileEntry:
    """One file of a bundle. `made_from` maps names of files it was derived from to their sha256 at that time;
    `sampled_sha256` is that of some of its pages (`file_check.py`)."""

    sha256: str
    bytes: int
    sampled_sha256: str
    made_from: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AdapterRecord:
    """The LoRA adapter that was merged into the source: its folder, and `adapter_digest` of it at export time."""

    reference: str
    digest: str


@dataclass(frozen=True)
class SourceRecord:
    """The checkpoint a bundle was exported from; `digest` is `source_digest` of it at export time, without the adapter
    that was merged into it."""

    kind: str
    reference: str
    digest: str
    seed: int | None = None
    adapter: AdapterRecord | None = None


@dataclass(frozen=True)
class StageRecord:
    """Which layers of a model of `layers` layers a stage has: those from `first` on, up to the one before `stop`."""

    first: int
    stop: int
    layers: int


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
    opset: int
    ir_version: int
    weights_digest: str
    files: dict[str, FileEntry]
    conversion: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    quantisation: Quantisation | None = None
    stage: StageRecord | None = None
    embedding: EmbeddingRecord | None = None
    engines: dict[str, Any] = field(default_factory=dict)  # file name -> EngineEntry of trt_engine.py, as JSON
    schema_version: int = SCHEMA_VERSION

    @property
    def interface(self) -> Interface:
        """The interface of a decoder of this config, precision, M and ends.

        Raises:
            ValueError: its ends contradict each other.
        """
        if self.embedding is not None:
            if self.headless or self.last_logits_only or self.stage is not None:
                raise ValueError("a decoder that gives embeddings is not headless, has no logits and is no stage")
            ends = Ends.of_embedding(self.embedding.pooling, normalize=self.embedding.normalized)
        elif self.stage is None:
            ends = Ends.of(headless=self.headless, last_logits_only=self.last_logits_only)
        else:
            ends = Ends.of_stage(range(self.stage.first, self.stage.stop), self.stage.layers)
        return Interface(self.config, self.precision.element, self.max_sequence_length, ends)

    @property
    def graphs(self) -> list[str]:
        """The bundle's ONNX files, the main one first."""
        return [name for name in GRAPHS if name in self.files]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values. Without quantised matrices, adapter, other stages or embeddings their keys are left out:
        earlier readers lack them."""
        values = asdict(self)
        for name in ("quantisation", "stage", "embedding"):
            if values[name] is None:
                del values[name]
        if self.source.adapter is None:
            del values["source"]["adapter"]
        return values

    def to_bytes(self) -> bytes:
        """The file."""
        return _with_own_digest(self.to_json())


def _with_own_digest(values: Mapping[str, Any]) -> bytes:
    digest = hashlib.sha256(_written(values)).hexdigest()
    return _written({**values, OWN_DIGEST: digest})


def _written(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()


def is_as_written(folder: Path) -> bool | None:
    """Whether a bundle's manifest is byte for byte what blockexport wrote, by the digest of itself in it; None of an
    older one, which has none.

    Raises:
        UsageError: the file cannot be read.
    """
    content = read_bytes(folder / MANIFEST)
    try:
        values = json.loads(content)
        if OWN_DIGEST not in values:
            return None
        del values[OWN_DIGEST]
        return content == _with_own_digest(values)
    except (ValueError, TypeError, RecursionError):
        return False


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def combined_digest(digests: Iterable[str]) -> str:
    """One hex sha256 over several, in the given order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write or replace a bundle's manifest atomically. A sealed bundle's is changed by `add_files`.

    Raises:
        UsageError: the disk is full or cannot be written.
    """
    replace_file(folder / MANIFEST, manifest.to_bytes())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle.

    Raises:
        UsageError: the folder is not a bundle, or one of a newer schema, or its manifest is damaged: a value is of
            another type or out of range, or the interface it lists is not the one its own numbers give.
    """
    path = folder / MANIFEST
    if not is_there(path):
        raise UsageError(_no_bundle(folder))
    require_utf8(folder)
    finish_moves(folder)
    try:
        data = json.loads(read_bytes(path).decode("utf-8"))
        if not isinstance(data, dict):
            raise ValueError("it is no object with keys")
        version = data.get("schema_version")
        if version != SCHEMA_VERSION or isinstance(version, bool):
            raise UsageError(
                f"{path} has schema version {version!r} and this blockexport reads {SCHEMA_VERSION}: "
                "export the bundle again, or use the blockexport that wrote it"
            )
        data.pop(OWN_DIGEST, None)
        manifest = read_record(Manifest, data, "")
        check_manifest(manifest)
    except (ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {error}. Copy the whole bundle again, or export it again") from error
    return manifest


def _no_bundle(folder: Path) -> str:
    """Why a path without a manifest is not a bundle, and what was probably meant."""
    for parent in folder.parents:
        if (parent / MANIFEST).is_file():
            return f"{folder} is not a bundle, but a path inside of one: did you mean {parent}?"
    quoted = shlex.quote(str(folder))
    if not folder.exists():
        return f"{folder} is not a bundle: there is no such folder. `blockexport onnx MODEL -o {quoted}` makes one"
    if (folder / "config.json").is_file() or folder.suffix.lower() == ".gguf":
        return f"{folder} is not a bundle, but a model. `blockexport onnx {quoted} -o BUNDLE` makes a bundle of it"
    has = f"it has no {MANIFEST}" if folder.is_dir() else "it is a file"
    return f"{folder} is not a bundle: {has}. `blockexport onnx MODEL -o BUNDLE` makes the folder that one is"


def check_manifest(manifest: Manifest) -> None:
    """Whether a manifest's numbers are possible, and its inputs and outputs those that its numbers give.

    Raises:
        ValueError: says which value is wrong, and what it has to be.
    """
    config, slots, rows = manifest.config, manifest.max_sequence_length, manifest.rope_table_rows
    for name in _POSITIVE:
        if not getattr(config, name) > 0:
            raise ValueError(f"config.{name} is {getattr(config, name)}, and must be above 0")
    _check_layers(config)
    if config.sliding_window is not None and config.sliding_window < 1:
        raise ValueError(f"config.sliding_window is {config.sliding_window}, and must be at least 1, or null")
    if not 1 <= slots <= rows:
        raise ValueError(f"max_sequence_length is {slots}, and must be within 1..{rows}, the rope_table_rows")
    stage = manifest.stage
    if stage is not None and not (
        0 <= stage.first < stage.stop <= stage.layers and config.num_hidden_layers == stage.stop - stage.first
    ):
        raise ValueError(
            f"stage is {stage.first}:{stage.stop} of {stage.layers} layers, and must be "
            f"{config.num_hidden_layers} of them, as config.num_hidden_layers says"
        )
    if ONNX_FILE not in manifest.files:
        raise ValueError(f"files does not list {ONNX_FILE}, which every bundle has")
    for path, entry in manifest.files.items():
        _check_file(path, entry)
        if lost := sorted(entry.made_from.keys() - manifest.files.keys()):
            raise ValueError(f"files[{path!r}] is made from {lost[0]}, which files does not list")
    made = manifest.interface
    for kind, listed, ports in zip(
        ("inputs", "outputs"), (manifest.inputs, manifest.outputs), (made.inputs, made.outputs), strict=True
    ):
        _check_ports(kind, listed, ports)


def _check_layers(config: ModelConfig) -> None:
    if config.num_hidden_layers > MAX_LAYERS:  # before as many inputs and outputs are made of it
        raise ValueError(f"config.num_hidden_layers is {config.num_hidden_layers}, and must be at most {MAX_LAYERS}")
    if len(config.layer_types) not in (0, config.num_hidden_layers):
        raise ValueError(
            f"config.layer_types has {len(config.layer_types)} entries, and must have one for each of the "
            f"{config.num_hidden_layers} layers, or none"
        )
    if set(config.layers_without_rope) - set(range(config.num_hidden_layers)):
        raise ValueError(
            f"config.layers_without_rope is {list(config.layers_without_rope)}, and must name some of the "
            f"{config.num_hidden_layers} layers, from 0 on"
        )


def _check_file(name: str, entry: FileEntry) -> None:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError(f"files lists {name!r}, and must list none outside of the bundle")
    if name in ("", ".") or "\0" in name or not is_text(name) or str(PurePosixPath(name)) != name:
        raise ValueError(f"files lists {name!r}, which no file is called")
    for digest in (entry.sha256, entry.sampled_sha256, *entry.made_from.values()):
        if not _SHA256.fullmatch(digest):
            raise ValueError(f"files[{name!r}] has the hash {digest!r}, and must have 64 hexadecimal digits")
    if entry.bytes < 0:
        raise ValueError(f"files[{name!r}].bytes is {entry.bytes}, and must be at least 0")


def _check_ports(kind: str, listed: Sequence[Port], expected: Sequence[Port]) -> None:
    if len(listed) != len(expected):
        raise ValueError(f"it lists {len(listed)} {kind}, and a decoder of its config has {len(expected)}")
    for have, want in zip(listed, expected, strict=True):
        if have != want:
            raise ValueError(
                f"it lists {have} among its {kind}, where its own config, precision, max_sequence_length and ends "
                f"(headless, last_logits_only, stage, embedding) give {want}"
            )
