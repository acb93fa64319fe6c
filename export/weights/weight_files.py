"""The weights of a bundle: safetensors files that the graph points into.

Where the checkpoint already has the wanted type its files are cloned as a whole, without looking inside; otherwise
every tensor is read, converted and written in turn. Never a link: onnx's loader refuses external data behind one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from blockexport.export.bundle.clone_file import clone_files
from blockexport.export.output.disk import check_free_space, disk_errors, removed_on_failure
from blockexport.export.weights.conversion_report import ConversionReport, report_of
from blockexport.export.weights.safetensors_writer import HashingWriter, byte_size, header_bytes, raw_bytes
from blockexport.models.checkpoints.checkpoint import Checkpoint, TensorEntry
from blockexport.models.checkpoints.weight_values import (
    TensorLoss,
    check_finite,
    check_no_overflow,
    combined_loss,
    narrow,
)
from blockexport.models.precision import Precision
from blockexport.models.progress import Progress, silent
from blockexport.models.quantised_matrix import QuantisationScheme

WEIGHTS_FILE = "model.safetensors"

_CHUNK_ELEMENTS = 1 << 21

Claim = Callable[[Path], None]


@dataclass(frozen=True)
class WrittenTensor:
    """Where a tensor is in the bundle: `length` bytes at `offset` of the file `file`, of a safetensors type."""

    file: str
    offset: int
    length: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WrittenCodes:
    """Where the codes of a quantised matrix are, packed as ONNX has them, and their shape there."""

    file: str
    offset: int
    length: int
    scheme: QuantisationScheme
    shape: tuple[int, int]


@dataclass(frozen=True)
class WrittenFile:
    """One weights file of the bundle."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class WrittenWeights:
    """What `write_weights` wrote.

    Attributes:
        tensors: by Hugging Face name; the scales of a quantised matrix by its name with `.scales` at the end.
        files: by file name.
        report: what the conversion did to the values.
        source_sha256: of the checkpoint's files that were hashed on the way.
        codes: of the quantised matrices, by their names with `.codes` at the end.
    """

    tensors: Mapping[str, WrittenTensor]
    files: Mapping[str, WrittenFile]
    report: ConversionReport
    source_sha256: Mapping[Path, str]
    codes: Mapping[str, WrittenCodes] = field(default_factory=dict)


def write_weights(
    checkpoint: Checkpoint, folder: Path, precision: Precision, names: Sequence[str], progress: Progress = silent
) -> WrittenWeights:
    """Write the tensors `names` of `checkpoint` in `precision` into `folder`.

    A clone keeps the checkpoint's files whole, with tensors that were not asked for; a conversion writes one file with
    the asked for alone, in the order of the forward pass. Both are the same bytes every time.

    Raises:
        UsageError: a value is not finite, or overflows in `precision`; the disk is full or cannot be written. No file
            is left behind.
    """
    entries = {name: entry for name, entry in checkpoint.entries.items() if name in set(names)}
    with disk_errors(folder), one_thread(), removed_on_failure() as claim:
        if _can_clone(checkpoint, entries, precision):
            return _clone(checkpoint, entries, folder, claim, progress)
        return _convert(checkpoint, entries, folder / WEIGHTS_FILE, precision, claim, progress)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch work on the calling thread alone: the other core hashes or traces, and OpenMP's threads would spin
    against it (seven times the processor time on two busy cores)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _can_clone(checkpoint: Checkpoint, entries: Mapping[str, TensorEntry], precision: Precision) -> bool:
    """Whether the files can be copied as they are: type, names and alignment are a bundle's already."""
    return checkpoint.source.kind == "safetensors" and all(
        entry.dtype == precision.element.safetensors
        and entry.stored_name is None
        and entry.location is not None
        and entry.location.offset % precision.element.itemsize == 0
        for entry in entries.values()
    )


def _clone(
    checkpoint: Checkpoint, entries: Mapping[str, TensorEntry], folder: Path, claim: Claim, progress: Progress
) -> WrittenWeights:
    located = {name: (entry, entry.location) for name, entry in entries.items() if entry.location is not None}
    sources = sorted({location.path for _, location in located.values()})
    targets = {source: folder / _clone_name(i, len(sources)) for i, source in enumerate(sources, start=1)}
    for target in targets.values():
        claim(target)
    with clone_files(targets) as finish:
        for done, name in enumerate(entries, start=1):
            check_finite(name, checkpoint.read(name))
            progress("copying weights", done, len(entries) + 1)
        copied = finish()
        progress("copying weights", len(entries) + 1, len(entries) + 1)
    tensors = {
        name: WrittenTensor(targets[at.path].name, at.offset, at.length, entry.dtype, entry.shape)
        for name, (entry, at) in located.items()
    }
    files = {targets[source].name: WrittenFile(copy.sha256, copy.bytes) for source, copy in copied.items()}
    types = sorted({entry.dtype for entry in entries.values()})
    report = ConversionReport(tuple(types), types[0], cloned=True)
    return WrittenWeights(tensors, files, report, {source: copy.sha256 for source, copy in copied.items()})


def _clone_name(number: int, count: int) -> str:
    """Hugging Face's names for a whole model and for shards, whatever the checkpoint called its files."""
    return WEIGHTS_FILE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def _convert(
    checkpoint: Checkpoint,
    entries: Mapping[str, TensorEntry],
    path: Path,
    precision: Precision,
    claim: Claim,
    progress: Progress,
) -> WrittenWeights:
    target = precision.element.safetensors
    written = {name: replace(entry, dtype=target, location=None) for name, entry in entries.items()}
    header, offsets = header_bytes(written)
    total = len(header) + sum(map(byte_size, written.values()))
    check_free_space(path.parent, total)
    losses: list[TensorLoss] = []
    label = "making random weights" if checkpoint.source.kind == "random" else "converting weights"
    claim(path)
    with HashingWriter(path) as file:
        file.write(header)
        done = len(header)
        for name, entry in written.items():
            losses.append(write_converted(checkpoint, name, precision, file))
            done += byte_size(entry)
            progress(label, done, total)
        check_no_overflow(losses, precision.torch_dtype)
        digest = file.finish()
    tensors = {
        name: WrittenTensor(path.name, offsets[name], byte_size(entry), target, entry.shape)
        for name, entry in written.items()
    }
    source_bytes = sum(file.stat().st_size for file in checkpoint.source.files)
    report = report_of(entries.values(), target, losses, source_bytes, total)
    return WrittenWeights(tensors, {path.name: WrittenFile(digest, total)}, report, {})


def write_converted(checkpoint: Checkpoint, name: str, precision: Precision, file: HashingWriter) -> TensorLoss:
    """Write one tensor in `precision`; returns what it lost."""
    parts: list[TensorLoss] = []
    for converted, loss in converted_chunks(checkpoint, name, precision.torch_dtype):
        file.write(raw_bytes(converted))
        parts.append(loss)
    return combined_loss(name, parts)


def converted_chunks(
    checkpoint: Checkpoint, name: str, dtype: torch.dtype
) -> Iterator[tuple[torch.Tensor, TensorLoss]]:
    """One tensor of a checkpoint as a bundle in `dtype` holds it: flat pieces in order, with what each lost.

    Raises:
        UsageError: it holds values that are not finite.
    """
    tensor = checkpoint.read(name)
    check_finite(name, tensor)
    for chunk in tensor.reshape(-1).split(_CHUNK_ELEMENTS):
        yield narrow(name, chunk, dtype)
