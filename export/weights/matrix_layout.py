"""How quantised matrices lie in the weights file of a bundle, written one by one after what stays in floating point.

First the order of inputs, where there is one, then the scales, the zero points and the codes of each. Codes of 4 bits
are packed two a byte under the type U8, since safetensors has none so small; the graph says what they are. Where sizes
are multiples of 64, as those of real models are, each tensor begins at such a multiple, too.

A matrix that the checkpoint has in such codes already is taken over code by code: it is not rounded to other scales.
A head that is tied to the embedding has its codes, in another order, where both are quantised alike.
Matrices that read the same input lie side by side (`models/side_by_side.py`), unless the checkpoint has them in
different orders of it. Those that share an order otherwise have one tensor for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
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
    beside_each_other,
    packed_as_stored,
)
from blockexport.models.side_by_side import SideBySide, side_by_side

_Made = tuple[QuantisedMatrix, list[float | None]]


@dataclass(frozen=True)
class MatrixLayout:
    """How a matrix, or several side by side, lies in the file: [K, N] as a product reads it, or [N, K], where rows are
    looked up.

    Attributes:
        tensors: which, and how many of the N outputs each has.
        scheme: of its codes.
        width: K.
        taken_over: those of the tensors whose codes are the checkpoint's.
        order: the matrix under whose name the order of its inputs is in the file; None where they are as they are.
    """

    tensors: SideBySide
    scheme: QuantisationScheme
    width: int
    taken_over: frozenset[str] = frozenset()
    order: str | None = None

    @property
    def name(self) -> str:
        """What it is called in the file: a single matrix by its own name."""
        return self.tensors.name

    @property
    def outputs(self) -> int:
        """N."""
        return sum(self.tensors.outputs.values())

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
    """Those of the tensors `names` that are quantised, by what they are called in the file; those that share their
    codes follow each other."""
    schemes = {name: quantisation.scheme_of(name) for name in names} if quantisation is not None else {}
    outputs = {name: checkpoint.entries[name].shape[0] for name, scheme in schemes.items() if scheme is not None}
    layouts: dict[str, MatrixLayout] = {}
    first: dict[str, str] = {}  # of each order the matrix that has it first
    for name in outputs:
        tensors, scheme = _together(checkpoint, name, outputs), schemes[name]
        if tensors.name in layouts:
            continue
        assert scheme is not None
        codes = {one: checkpoint.entries[one].codes for one in tensors.outputs}
        taken_over = frozenset(one for one, has in codes.items() if has is not None and scheme.holds(has))
        entry = checkpoint.entries[name]
        order = first.setdefault(entry.order, tensors.name) if name in taken_over and entry.order is not None else None
        layouts[tensors.name] = MatrixLayout(tensors, scheme, entry.shape[1], taken_over, order)
    places = {(name, layout.scheme): place for place, (name, layout) in enumerate(layouts.items())}

    def place(item: tuple[str, MatrixLayout]) -> int:
        name, layout = item
        return places.get((checkpoint.origin(name), layout.scheme), places[name, layout.scheme])

    return dict(sorted(layouts.items(), key=place))


def _together(checkpoint: Checkpoint, name: str, outputs: Mapping[str, int]) -> SideBySide:
    """The matrices that lie beside one, which may be by itself: those of one order of inputs, or of none."""
    found = side_by_side(name, outputs)
    entries = [checkpoint.entries[one] for one in ([] if found is None else found.outputs)]
    if found is None or len({(one.order, one.order and one.codes) for one in entries}) > 1:
        return SideBySide(name, {name: outputs[name]})
    return found


def write_matrices(
    checkpoint: Checkpoint,
    layouts: Mapping[str, MatrixLayout],
    precision: Precision,
    file: HashingWriter,
    threads: int,
    calibration: Calibration | None = None,
) -> Iterator[tuple[str, float | None]]:
    """Write the matrices of `layouts_of`, one by one: those in 4 bits for the inputs of a text, where there is one.

    The next ones are made meanwhile, as many at a time as there are `threads`: each on one, since most of what a thread
    does is too short to be shared.

    Yields:
        The name of each, once it is written, and what quantising it cost, relative to its size; None where it was
        taken over.

    Raises:
        UsageError: a value is not finite, or does not fit its scale; a scale of the checkpoint does not fit the bundle.
    """
    alike = groupby(layouts.values(), lambda layout: (checkpoint.origin(layout.name), layout.scheme))
    groups = [list(group) for _, group in alike]
    make = partial(_made, checkpoint, scales=scale_dtype(precision), calibration=calibration)
    # A calibration runs through the layers in order, on all of torch's threads.
    workers = ThreadPoolExecutor(threads if calibration is None else 1)
    waiting: deque[Future[_Made]] = deque()
    try:
        for ahead, group in enumerate(groups):
            for further in groups[ahead + len(waiting) : ahead + threads + 1]:
                waiting.append(workers.submit(make, further[0]))
            matrix, costs = waiting.popleft().result()
            for layout in group:
                for part in _parts(matrix, layout):
                    file.write(raw_bytes(part))
                yield from zip(layout.tensors.outputs, costs, strict=True)
    finally:
        workers.shutdown(cancel_futures=True)


def _made(
    checkpoint: Checkpoint, layout: MatrixLayout, *, scales: torch.dtype, calibration: Calibration | None
) -> _Made:
    """The matrices of a layout as one, and what quantising each cost."""
    made = [_quantised(checkpoint, layout, name, scales, calibration) for name in layout.tensors.outputs]
    return beside_each_other(layout.name, [matrix for matrix, _ in made]), [cost for _, cost in made]


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
    name: str,
    scales: torch.dtype,
    calibration: Calibration | None,
) -> tuple[QuantisedMatrix, float | None]:
    """One matrix of a layout, and what quantising it cost; None where it was taken over."""
    if name in layout.taken_over:
        return _taken_over(checkpoint, name, scales).in_scheme(layout.scheme), None
    strips, shape = finite_strips(checkpoint, name), (layout.tensors.outputs[name], layout.width)
    scheme = replace(layout.scheme, zero_points=False)
    if calibration is not None and scheme.bits == 4:
        weight_NK = torch.cat(list(strips))
        matrix, error = quantise_with_feedback(name, weight_NK, calibration.products(name), scheme, scales)
    else:
        matrix, error = quantise_strips(name, shape, strips, scheme, scales)
    return matrix.in_scheme(layout.scheme), float(f"{error.relative:.4g}")


def _taken_over(checkpoint: Checkpoint, name: str, scales: torch.dtype) -> QuantisedMatrix:
    matrix = checkpoint.read_codes(name)
    check_finite(f"{name} of {checkpoint.source.reference}: its table of scales", matrix.scales_GN.T)
    converted = matrix.scales_GN.to(scales)
    if not torch.equal(converted.float(), matrix.scales_GN.float()):
        stored, wanted = (str(dtype).removeprefix("torch.") for dtype in (matrix.scales_GN.dtype, scales))
        fitting = [f"--{one}" for one in Precision if scale_dtype(one) == matrix.scales_GN.dtype]
        choice = f"with {' or '.join(fitting)}, or " if fitting else ""
        raise UsageError(
            f"the checkpoint has {name} quantised, with scales in {stored}, which {wanted} does not hold: they "
            f"would be rounded, and every weight with them. Export it {choice}without --quantize"
        )
    return replace(matrix, scales_GN=converted)
