"""How quantised matrices lie in the weights file of a bundle, written one by one after what stays in floating point.

First the scales and then the codes of each. Codes of 4 bits are packed two a byte under the type U8, since safetensors
has none so small; the graph says what they are. Where sizes are multiples of 64, as those of real models are, each
tensor begins at such a multiple, too.

A matrix that the checkpoint has in such codes already is taken over code by code: it is not rounded to other scales.
A head that is tied to the embedding has its codes, in another order, where both are quantised alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from blockexport.export.weights.block_quantiser import quantise_strips
from blockexport.export.weights.safetensors_writer import HashingWriter, raw_bytes
from blockexport.models.checkpoints.checkpoint import Checkpoint, TensorEntry
from blockexport.models.checkpoints.tensor_names import EMBEDDING
from blockexport.models.checkpoints.weight_values import check_finite, finite_strips
from blockexport.models.element_types import element_of
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from blockexport.models.quantisation import Quantisation, scale_dtype
from blockexport.models.quantised_matrix import CODES, SCALES, QuantisationScheme, QuantisedMatrix


@dataclass(frozen=True)
class MatrixLayout:
    """How a matrix lies in the file: [K, N] as a product reads it, or [N, K], where rows are looked up."""

    name: str
    scheme: QuantisationScheme
    outputs: int
    width: int

    @property
    def by_rows(self) -> bool:
        """Whether it is [N, K]."""
        return self.name == EMBEDDING

    @property
    def shape(self) -> tuple[int, int]:
        """Of the codes in the graph."""
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


def layouts_of(
    checkpoint: Checkpoint, names: Iterable[str], quantisation: Quantisation | None
) -> dict[str, MatrixLayout]:
    """Those of the tensors `names` that are quantised, by name; those that share their codes follow each other."""
    schemes = {} if quantisation is None else {name: quantisation.scheme_of(name) for name in names}
    layouts = {
        name: MatrixLayout(name, scheme, *checkpoint.entries[name].shape) for name, scheme in schemes.items() if scheme
    }
    places = {(name, layout.scheme): place for place, (name, layout) in enumerate(layouts.items())}

    def place(item: tuple[str, MatrixLayout]) -> int:
        name, layout = item
        return places.get((checkpoint.origin(name), layout.scheme), places[name, layout.scheme])

    return dict(sorted(layouts.items(), key=place))


def write_matrices(
    checkpoint: Checkpoint,
    layouts: Mapping[str, MatrixLayout],
    precision: Precision,
    file: HashingWriter,
    threads: int,
) -> Iterator[tuple[str, float | None]]:
    """Write the matrices of `layouts_of`, one by one.

    Yields:
        The name of each, once it is written, and what quantising it cost, relative to its size; None where it was
        taken over.

    Raises:
        UsageError: a value is not finite, or does not fit its scale; a scale of the checkpoint does not fit the bundle.
    """
    alike = groupby(layouts.values(), lambda layout: (checkpoint.origin(layout.name), layout.scheme))
    for _, group in alike:
        matrix = cost = None
        for layout in group:
            if matrix is None:
                matrix, cost = _quantised(checkpoint, layout, scale_dtype(precision), threads)
            file.write(raw_bytes(matrix.scales_GN.T if layout.by_rows else matrix.scales_GN))
            for piece in matrix.packed(outputs_first=layout.by_rows):
                file.write(raw_bytes(piece))
            yield layout.name, cost


def _quantised(
    checkpoint: Checkpoint, layout: MatrixLayout, scales: torch.dtype, threads: int
) -> tuple[QuantisedMatrix, float | None]:
    """The matrix of a layout, and what quantising it cost; None where it was taken over."""
    codes = checkpoint.entries[layout.name].codes
    if codes is not None and layout.scheme.holds(codes):
        return _taken_over(checkpoint, layout, scales), None
    strips = finite_strips(checkpoint, layout.name)
    shape = (layout.outputs, layout.width)
    matrix, error = quantise_strips(layout.name, shape, strips, layout.scheme, scales, threads)
    return matrix, float(f"{error.relative:.4g}")


def _taken_over(checkpoint: Checkpoint, layout: MatrixLayout, scales: torch.dtype) -> QuantisedMatrix:
    matrix = checkpoint.read_codes(layout.name)
    check_finite(f"{layout.name} of {checkpoint.source.reference}: its table of scales", matrix.scales_GN.T)
    converted = matrix.scales_GN.to(scales)
    if not torch.equal(converted.float(), matrix.scales_GN.float()):
        stored, wanted = (str(dtype).removeprefix("torch.") for dtype in (matrix.scales_GN.dtype, scales))
        raise UsageError(
            f"the checkpoint has {layout.name} quantised, with scales in {stored}, which {wanted} does not hold: they "
            "would be rounded, and every weight with them. Export it with --fp16 or --fp32, or without --quantize"
        )
    return replace(matrix, scheme=layout.scheme, scales_GN=converted)
