"""The weights of a bundle: safetensors files that the graph points into.

Where the checkpoint already has the wanted type its files are cloned as a whole, without looking inside; otherwise
every tensor is read, converted and written in turn. Never a link: onnx's loader refuses external data behind one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from blockexport.export.bundle.clone_file import clone_files
from blockexport.export.bundle.source_digest import hashed_meanwhile
from blockexport.export.output.disk import check_free_space, disk_errors
from blockexport.export.weights.calibration import Calibration
from blockexport.export.weights.conversion_report import ConversionReport, report_of
from blockexport.export.weights.matrix_layout import MatrixLayout, layouts_of, write_matrices
from blockexport.export.weights.safetensors_writer import HashingWriter, byte_size, header_bytes, raw_bytes
from blockexport.models.checkpoints.checkpoint import Checkpoint, TensorEntry
from blockexport.models.checkpoints.weight_values import (
    TensorLoss,
    check_no_overflow,
    combined_loss,
    finite_strips,
    narrow,
)
from blockexport.models.precision import Precision
from blockexport.models.progress import Progress, silent
from blockexport.models.quantisation import Quantisation, scale_dtype

WEIGHTS_FILE = "model.safetensors"

_CHUNK_ELEMENTS = 1 << 21
_MIB = 1 << 20


@dataclass(frozen=True)
class WrittenWeights:
    """What `write_weights` wrote.

    Attributes:
        files: their hex sha256 by name. Each is a safetensors file, whose header says where its tensors are: under
            their Hugging Face names, the parts of a quantised matrix with `.scales`, `.codes`, `.zero_points` and
            `.order` at the end, those that lie side by side under a name of their own.
        report: what the conversion did to the values.
        source_sha256: of the checkpoint's files that were hashed on the way.
        layouts: of the quantised matrices, by what they are called in the file.
    """

    files: Mapping[str, str]
    report: ConversionReport
    source_sha256: Mapping[Path, str]
    layouts: Mapping[str, MatrixLayout] = field(default_factory=dict)


def write_weights(
    checkpoint: Checkpoint,
    folder: Path,
    precision: Precision,
    names: Sequence[str],
    quantisation: Quantisation | None = None,
    progress: Progress = silent,
    calibration: Calibration | None = None,
    *,
    hash_source: bool = False,
) -> WrittenWeights:
    """Write the tensors `names` of `checkpoint` in `precision` into `folder`, some matrices quantised.

    A clone keeps the checkpoint's files whole, with tensors that were not asked for; a conversion writes one file with
    the asked for alone, in the order of the forward pass, a chunk or a matrix with its codes in memory at a time. Both
    are the same bytes every time.

    Args:
        checkpoint: with a head of its own where the head is to be quantised.
        folder: where the files go, which holds none of their names.
        precision: of what stays in floating point.
        names: of the tensors.
        quantisation: which are quantised, and how; None where none is.
        progress: hears of the bytes and the matrices written.
        calibration: the run that matrices in 4 bits are quantised for; it computes on all threads.
        hash_source: hash the checkpoint's files beside the conversion, too; of a clone's they are always known.

    Raises:
        UsageError: a value is not finite, or too large for its type or its scale; the disk is full or cannot be
            written. What was written is left to whoever made the folder.
    """
    entries = {name: entry for name, entry in checkpoint.entries.items() if name in set(names)}
    threads = torch.get_num_threads()
    with disk_errors(folder), one_thread() if calibration is None else nullcontext():
        if quantisation is None and _can_clone(checkpoint, entries, precision):
            return _clone(checkpoint, entries, folder, progress)
        layouts = layouts_of(checkpoint, entries, quantisation)
        with hashed_meanwhile(checkpoint.source.files if hash_source else ()) as source_sha256:
            written = _convert(
                checkpoint, entries, folder / WEIGHTS_FILE, precision, layouts, threads, progress, calibration
            )
            return replace(written, source_sha256=source_sha256())


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
    checkpoint: Checkpoint, entries: Mapping[str, TensorEntry], folder: Path, progress: Progress
) -> WrittenWeights:
    sources = sorted({entry.location.path for entry in entries.values() if entry.location is not None})
    targets = {source: folder / _clone_name(i, len(sources)) for i, source in enumerate(sources, start=1)}
    with clone_files(targets) as finish:
        for done, name in enumerate(entries, start=1):
            for _ in finite_strips(checkpoint, name):
                pass
            progress("copying weights", done, len(entries) + 1)
        copied = finish()
        progress("copying weights", len(entries) + 1, len(entries) + 1)
    types = sorted({entry.dtype for entry in entries.values()})
    report = ConversionReport(tuple(types), types[0], cloned=True)
    return WrittenWeights({targets[source].name: sha256 for source, sha256 in copied.items()}, report, copied)


def _clone_name(number: int, count: int) -> str:
    """Hugging Face's names for a whole model and for shards, whatever the checkpoint called its files."""
    return WEIGHTS_FILE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def _convert(
    checkpoint: Checkpoint,
    entries: Mapping[str, TensorEntry],
    path: Path,
    precision: Precision,
    layouts: Mapping[str, MatrixLayout],
    threads: int,
    progress: Progress,
    calibration: Calibration | None,
) -> WrittenWeights:
    target = precision.element.safetensors
    quantised = {name for layout in layouts.values() for name in layout.tensors.outputs}
    kept = {name: replace(entry, dtype=target) for name, entry in entries.items() if name not in quantised}
    matrices = [entry for layout in layouts.values() for entry in layout.entries(scale_dtype(precision))]
    header = header_bytes({**kept, **{entry.name: entry for entry in matrices}})
    total = len(header) + sum(map(byte_size, kept.values()))
    size = total + sum(map(byte_size, matrices))
    check_free_space(path.parent, size)
    losses: list[TensorLoss] = []
    errors: dict[str, float] = {}
    label = f"{'making random' if checkpoint.source.kind == 'random' else 'converting'} weights, in MiB:"
    with HashingWriter(path) as file:
        file.write(header)
        done = len(header)
        for name, entry in kept.items():
            losses.append(_write_converted(checkpoint, name, precision, file))
            done += byte_size(entry)
            progress(label, -(-done // _MIB), -(-total // _MIB))
        check_no_overflow(losses, precision.torch_dtype)
        costs = write_matrices(checkpoint, layouts, precision, file, threads, calibration)
        for number, (name, cost) in enumerate(costs, start=1):
            if cost is not None:
                errors[name] = cost
            progress("quantising weights", number, len(quantised))
        digest = file.finish()
    source_bytes = sum(file.stat().st_size for file in checkpoint.source.files)
    report = report_of(entries.values(), target, losses, source_bytes, size, errors, quantised - errors.keys())
    return WrittenWeights({path.name: digest}, report, {}, layouts)


def _write_converted(checkpoint: Checkpoint, name: str, precision: Precision, file: HashingWriter) -> TensorLoss:
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
    for strip in finite_strips(checkpoint, name):
        for chunk in strip.reshape(-1).split(_CHUNK_ELEMENTS):
            yield narrow(name, chunk, dtype)
