"""How quantised matrices lie in the weights file of a bundle, written one by one after what stays in floating point.

First the order of inputs, where there is one, then the scales, the zero points and the codes of each. Codes of 4 bits
are packed two a byte under the type U8, since safetensors has none so small; the graph says what they are. Where sizes
are multiples of 64, as those of real models are, each tensor begins at such a multiple, too.

A matrix that the checkpoint has in such codes already is taken over code by code: it is not rounded to other scales.
A head that is tied to the embedding has its codes, in another order, where both are quantised alike.
Matrices that were quantised in one order of inputs, as those of q, k and v are, have one tensor for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from blockexport.export.weights.block_quantiser import quantise_strips
from blockexport.export.weights.calibration import Calibration
from blockexport.export.weights.error_feedback import quantise_with_feedback
from blockexport.export.weights.safetensors_writer import HashingWriter, raw_bytes
from blockexport.models.checkpoints.checkpoint import Checkpoint, TensorEntry
from blockexport.models.checkpoints.tensor_names import EMBEDDING
from blockexport.models.checkpoints.weight_values import check_finite, finite_strips
from blockexport.models.element_types import element_of
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from blockexport.models.quantisation import Quantisation, scale_dtype
from blockexport.models.quantised_matrix import (
    CODES,
    ORDER,
    SCALES,
    ZERO_POINTS,
    QuantisationScheme,
    QuantisedMatrix,
    packed_as_stored,
)


@dataclass(frozen=True)
class MatrixLayout:
    """How a matrix lies in the file: [K, N] as a product reads it, or [N, K], where rows are looked up.

    Attributes:
        name: of the matrix.
        scheme: of its codes.
        outputs: N.
        width: K.
        taken_over: whether its codes are the checkpoint's.
        order: the matrix under whose name the order of its inputs is in the file; None where they are as they are.
    """

    name: str
    scheme: QuantisationScheme
    outputs: int
    width: int
    taken_over: bool = False
    order: str | None = None

    @property
    def by_rows(self) -> bool:
        """Whether it is [N, K]."""
        return self.name == EMBEDDING

    @property
    def shape(self) -> tuple[int, int]:
        """Of the codes in the graph."""
        return (self.outputs, self.width) if self.by_rows else (self.width, self.outputs)

    @property
    def grid(self) -> tuple[int, int]:
        """Shape of the scales and zero points."""
        blocks = self.scheme.blocks(self.width)
        return (self.outputs, blocks) if self.by_rows else (blocks, self.outputs)

    def entries(self, scales: torch.dtype) -> list[TensorEntry]:
        """Of its parts, in the order of the file."""
        parts = [TensorEntry(f"{self.name}{SCALES}", element_of(scales).safetensors, self.grid)]
        if self.order == self.name:
            parts.insert(0, TensorEntry(f"{self.name}{ORDER}", "I32", (self.width,)))
        if self.scheme.zero_points:
            parts.append(self._stored(ZERO_POINTS, self.grid))
        return [*parts, self._stored(CODES, self.shape)]

    def _stored(self, part: str, shape: tuple[int, int]) -> TensorEntry:
        """Of numbers that have as many bits as codes."""
        packed = (self.scheme.code_bytes(shape[0] * shape[1]),)
        kind, stored = ("I8", shape) if self.scheme.bits == 8 else ("U8", packed)
        return TensorEntry(f"{self.name}{part}", kind, stored)


def layouts_of(
    checkpoint: Checkpoint, names: Iterable[str], quantisation: Quantisation | None
) -> dict[str, MatrixLayout]:
    """Those of the tensors `names` that are quantised, by name; those that share their codes follow each other."""
    layouts: dict[str, MatrixLayout] = {}
    first: dict[str, str] = {}  # of each order the matrix that has it first
    for name in names:
        scheme = None if quantisation is None else quantisation.scheme_of(name)
        if scheme is None:
            continue
        entry = checkpoint.entries[name]
        outputs, width = entry.shape
        taken_over = entry.codes is not None and scheme.holds(entry.codes)
        order = first.setdefault(entry.order, name) if taken_over and entry.order is not None else None
        layouts[name] = MatrixLayout(name, scheme, outputs, width, taken_over, order)
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
    calibration: Calibration | None = None,
) -> Iterator[tuple[str, float | None]]:
    """Write the matrices of `layouts_of`, one by one: those in 4 bits for the inputs of a text, where there is one.

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
                matrix, cost = _quantised(checkpoint, layout, scale_dtype(precision), threads, calibration)
            for part in _parts(matrix, layout):
                file.write(raw_bytes(part))
            yield layout.name, cost


def _parts(matrix: QuantisedMatrix, layout: MatrixLayout) -> Iterator[torch.Tensor]:
    """What is written of a matrix, in the order of `MatrixLayout.entries`."""
    if layout.order == layout.name:
        assert matrix.order_K is not None, layout.name
        yield matrix.order_K.int()
    yield matrix.scales_GN.T if layout.by_rows else matrix.scales_GN
    if matrix.zero_points_GN is not None:
        zero_points = matrix.zero_points_GN.T if layout.by_rows else matrix.zero_points_GN
        yield packed_as_stored(zero_points, layout.scheme.bits)
    yield from matrix.packed(outputs_first=layout.by_rows)


def _quantised(
    checkpoint: Checkpoint,
    layout: MatrixLayout,
    scales: torch.dtype,
    threads: int,
    calibration: Calibration | None,
) -> tuple[QuantisedMatrix, float | None]:
    """The matrix of a layout, and what quantising it cost; None where it was taken over."""
    if layout.taken_over:
        return _taken_over(checkpoint, layout, scales).in_scheme(layout.scheme), None
    name, strips = layout.name, finite_strips(checkpoint, layout.name)
    scheme = replace(layout.scheme, zero_points=False)
    if calibration is not None and scheme.bits == 4:
        weight_NK = torch.cat(list(strips))
        matrix, error = quantise_with_feedback(name, weight_NK, calibration.products(name), scheme, scales)
    else:
        matrix, error = quantise_strips(name, (layout.outputs, layout.width), strips, scheme, scales, threads)
    return matrix.in_scheme(layout.scheme), float(f"{error.relative:.4g}")


def _taken_over(checkpoint: Checkpoint, layout: MatrixLayout, scales: torch.dtype) -> QuantisedMatrix:
    matrix = checkpoint.read_codes(layout.name)
    check_finite(f"{layout.name} of {checkpoint.source.reference}: its table of scales", matrix.scales_GN.T)
    converted = matrix.scales_GN.to(scales)
    if not torch.equal(converted.float(), matrix.scales_GN.float()):
        stored, wanted = (str(dtype).removeprefix("torch.") for dtype in (matrix.scales_GN.dtype, scales))
        fitting = [f"--{one}" for one in Precision if scale_dtype(one) == matrix.scales_GN.dtype]
        choice = f"with {' or '.join(fitting)}, or " if fitting else ""
        raise UsageError(
            f"the checkpoint has {layout.name} quantised, with scales in {stored}, which {wanted} does not hold: they "
            f"would be rounded, and every weight with them. Export it {choice}without --quantize"
        )
    return replace(matrix, scales_GN=converted)
