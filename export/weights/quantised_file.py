"""The weights file of a quantised bundle: one safetensors file, written matrix by matrix.

First what stays in floating point, then the scales and the codes of each matrix. Codes of 4 bits are packed two a byte
under the type U8, since safetensors has none so small; the graph says what they are. Where sizes are multiples of 64,
as those of real models are, each tensor begins at such a multiple, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from blockexport.export.output.disk import check_free_space, disk_errors, removed_on_failure
from blockexport.export.weights.block_quantiser import quantise
from blockexport.export.weights.conversion_report import report_of
from blockexport.export.weights.safetensors_writer import HashingWriter, byte_size, header_bytes, raw_bytes
from blockexport.export.weights.weight_files import (
    WEIGHTS_FILE,
    WrittenCodes,
    WrittenFile,
    WrittenTensor,
    WrittenWeights,
    one_thread,
    write_converted,
)
from blockexport.models.checkpoints.checkpoint import Checkpoint, TensorEntry
from blockexport.models.checkpoints.tensor_names import EMBEDDING
from blockexport.models.checkpoints.weight_values import TensorLoss, check_finite, check_no_overflow
from blockexport.models.element_types import element_of
from blockexport.models.precision import Precision
from blockexport.models.progress import Progress, counted, silent
from blockexport.models.quantisation import Quantisation, scale_dtype
from blockexport.models.quantised_matrix import CODES, SCALES, QuantisationScheme


@dataclass(frozen=True)
class _Layout:
    """How a matrix lies in the file: [K, N] as a product reads it, or [N, K], where rows are looked up."""

    name: str
    scheme: QuantisationScheme
    outputs: int
    width: int

    @property
    def by_rows(self) -> bool:
        return self.name == EMBEDDING

    @property
    def shape(self) -> tuple[int, int]:
        return (self.outputs, self.width) if self.by_rows else (self.width, self.outputs)

    def entries(self, scales: torch.dtype) -> tuple[TensorEntry, TensorEntry]:
        """Of the scales and of the codes."""
        blocks = self.scheme.blocks(self.width)
        grid = (self.outputs, blocks) if self.by_rows else (blocks, self.outputs)
        packed = (self.scheme.code_bytes(self.outputs * self.width),)
        kind, shape = ("I8", self.shape) if self.scheme.bits == 8 else ("U8", packed)
        return (
            TensorEntry(f"{self.name}{SCALES}", element_of(scales).safetensors, grid),
            TensorEntry(f"{self.name}{CODES}", kind, shape),
        )


def write_quantised_weights(
    checkpoint: Checkpoint,
    folder: Path,
    precision: Precision,
    names: Sequence[str],
    quantisation: Quantisation,
    progress: Progress = silent,
) -> WrittenWeights:
    """Write the tensors `names` of `checkpoint` into `folder`: matrices quantised, the others in `precision`.

    One matrix is in memory at a time, with its codes.

    Args:
        checkpoint: with a head of its own where the head is to be quantised.
        folder: where the file goes.
        precision: of the bundle.
        names: of the tensors, in the order of the forward pass.
        quantisation: which are quantised, and how.
        progress: hears of the bytes written.

    Raises:
        UsageError: a value is not finite, or too large for its type or its scale; the disk is full or cannot be
            written. No file is left behind.
    """
    threads = torch.get_num_threads()
    path = folder / WEIGHTS_FILE
    layouts = {name: _layout(checkpoint, name, scheme) for name in names if (scheme := quantisation.scheme_of(name))}
    kept = [name for name in names if name not in layouts]
    written = {name: replace(checkpoint.entries[name], dtype=precision.element.safetensors) for name in kept}
    for layout in layouts.values():
        written |= {entry.name: entry for entry in layout.entries(scale_dtype(precision))}
    header, offsets = header_bytes(written)
    total = len(header) + sum(map(byte_size, written.values()))
    losses: list[TensorLoss] = []
    errors: dict[str, float] = {}
    with disk_errors(folder), one_thread(), removed_on_failure() as claim:
        check_free_space(folder, total)
        claim(path)
        with HashingWriter(path) as file:
            file.write(header)
            for name in kept:
                losses.append(write_converted(checkpoint, name, precision, file))
            check_no_overflow(losses, precision.torch_dtype)
            for layout in counted(layouts.values(), "quantising weights", progress):
                errors[layout.name] = _write_matrix(checkpoint, layout, precision, file, threads)
            digest = file.finish()
    entries = [checkpoint.entries[name] for name in names]
    source_bytes = sum(file.stat().st_size for file in checkpoint.source.files)
    report = report_of(entries, precision.element.safetensors, losses, source_bytes, total, errors)
    tensors, codes = _places(path.name, written, offsets, layouts)
    return WrittenWeights(tensors, {path.name: WrittenFile(digest, total)}, report, {}, codes)


def _layout(checkpoint: Checkpoint, name: str, scheme: QuantisationScheme) -> _Layout:
    outputs, width = checkpoint.entries[name].shape
    return _Layout(name, scheme, outputs, width)


def _write_matrix(
    checkpoint: Checkpoint, layout: _Layout, precision: Precision, file: HashingWriter, threads: int
) -> float:
    """Quantise and write one matrix; returns what that cost, relative to its size."""
    weight_NK = checkpoint.read(layout.name)
    check_finite(layout.name, weight_NK)
    matrix, error = quantise(layout.name, weight_NK, layout.scheme, scale_dtype(precision), threads)
    file.write(raw_bytes(matrix.scales_GN.T if layout.by_rows else matrix.scales_GN))
    file.write(raw_bytes(matrix.packed(outputs_first=layout.by_rows)))
    return float(f"{error.relative:.4g}")


def _places(
    file: str, written: Mapping[str, TensorEntry], offsets: Mapping[str, int], layouts: Mapping[str, _Layout]
) -> tuple[dict[str, WrittenTensor], dict[str, WrittenCodes]]:
    tensors: dict[str, WrittenTensor] = {}
    codes: dict[str, WrittenCodes] = {}
    for name, entry in written.items():
        place = (file, offsets[name], byte_size(entry))
        layout = layouts.get(name.removesuffix(CODES)) if name.endswith(CODES) else None
        if layout is None:
            tensors[name] = WrittenTensor(*place, entry.dtype, entry.shape)
        else:
            codes[name] = WrittenCodes(*place, layout.scheme, layout.shape)
    return tensors, codes
