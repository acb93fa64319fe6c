"""The matrices that a quantised bundle has, read off its ONNX file, and held against the checkpoint's.

Its graph is judged on the weights that it has. Whether those are the checkpoint's is a question of its own: every code
has to be the one nearest to the checkpoint's value on the grid of its block, and the grid has to fit the block; in a
calibrated matrix it may be the one beside that, since what counts there are products. Where the checkpoint has such
codes itself, those of the bundle stand for exactly the values that it dequantises to. This file shares no code with the
quantiser, the writer and the reader of codes, so that a defect there cannot pass both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper

from blockexport.export.bundle.manifest import ONNX_FILE
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING
from blockexport.models.checkpoints.untied_checkpoint import UntiedCheckpoint
from blockexport.models.errors import NotJudgedError
from blockexport.models.progress import Progress, counted, silent
from blockexport.models.quantisation import Quantisation

_CODES = ".codes"
_ENDS: Mapping[int, tuple[int, int]] = {onnx.TensorProto.INT4: (-8, 7), onnx.TensorProto.INT8: (-128, 127)}
_HALF_A_STEP = 0.5 + 1e-3  # with room for the rounding of a quotient in float32
_BESIDE = 1.0  # steps more, of a calibrated matrix
_POOR = 2.0  # times the squared error that the plain rule leaves, the largest value at the last code
_REACH = (5.0, 12.0)  # steps to the largest value of a block of a calibrated matrix, at least and at most
_TINY = 1e-7  # what float16 rounds its smallest scales by
_DIGITS = 1 / 512  # of the largest value: what storing a scale in 16 bits costs a block of few values
_OUTPUTS = 4096  # looked at a time

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix as the graph dequantises it: [N, K], whatever way it lies in the file.

    Attributes:
        codes: the initializer of its codes.
        scales: the initializer that its scales are read from.
        axis: along which a block lies.
        block: codes that share a scale.
        zero_points: the initializer of what is taken from the codes of a block, where there is one.
        order: the initializer of the input that each code along K is multiplied by, where that is not its own place.
    """

    codes: onnx.TensorProto
    scales: onnx.TensorProto
    axis: int
    block: int
    zero_points: onnx.TensorProto | None = None
    order: onnx.TensorProto | None = None

    @property
    def ends(self) -> tuple[int, int]:
        """The smallest code and the largest."""
        return _ENDS[self.codes.data_type]


class StoredCheckpoint(Checkpoint):
    """The source's tensors, those that a bundle has quantised as its file has them.

    Attributes:
        original: the source, with an output head of its own where the bundle has one.
        matrices: what is quantised in the file, by the names of the tensors.

    Raises:
        NotJudgedError: the file dequantises something in a form that the exporter does not write.
    """

    def __init__(self, source: Checkpoint, folder: Path, quantisation: Quantisation) -> None:
        untied = quantisation.stored_config(source.config) != source.config
        self.original = UntiedCheckpoint(source) if untied else source
        self.config, self.source, self.notes = self.original.config, source.source, source.notes
        self.range_is_stated = source.range_is_stated
        self.quantisation = quantisation
        self._folder = folder
        self.matrices = _matrices(onnx.load(folder / ONNX_FILE, load_external_data=False))
        self.entries = {
            name: replace(entry, dtype="F32", location=None) if self._fits(name) else entry
            for name, entry in self.original.entries.items()
        }

    @property
    def wanted(self) -> list[str]:
        """Names of the tensors that the manifest says are quantised."""
        return [name for name in self.original.entries if self.quantisation.scheme_of(name) is not None]

    def is_taken_over(self, name: str) -> bool:
        """Whether the checkpoint has a tensor in codes that the bundle can have, too, and so has to."""
        scheme, codes = self.quantisation.scheme_of(name), self.original.entries[name].codes
        return scheme is not None and codes is not None and scheme.holds(codes)

    def read(self, name: str) -> torch.Tensor:
        """See `Checkpoint.read`."""
        if not self._fits(name):
            return self.original.read(name)
        codes, scales = self.grid(name)
        return torch.from_numpy(codes * scales)

    def shape(self, name: str) -> tuple[int, ...]:
        """[N, K] of a matrix in the file."""
        dims = tuple(self.matrices[name].codes.dims)
        return dims if self.matrices[name].axis == 1 else dims[::-1]

    def grid(self, name: str) -> tuple[Floats, Floats]:
        """Codes of a quantised tensor less their zero points, and the scale of each; their product is the tensor.

        Both are [N, K], with the inputs in their own order.
        """
        matrix = self.matrices[name]
        codes, scales = self._by_rows(matrix, matrix.codes), self._by_rows(matrix, matrix.scales)
        width = codes.shape[1]
        spread = np.repeat(scales, matrix.block, axis=1)[:, :width]
        if matrix.zero_points is not None:
            codes = codes - np.repeat(self._by_rows(matrix, matrix.zero_points), matrix.block, axis=1)[:, :width]
        if matrix.order is not None and self.is_whole_order(name):
            back = np.argsort(self._values(matrix.order))
            codes, spread = codes[:, back], spread[:, back]
        return np.ascontiguousarray(codes), np.ascontiguousarray(spread)

    def is_whole_order(self, name: str) -> bool:
        """Whether the inputs of a matrix come in an order that has each of them once."""
        order = self.matrices[name].order
        return order is None or np.array_equal(np.sort(self._values(order)), np.arange(self.shape(name)[1]))

    def _by_rows(self, matrix: StoredMatrix, tensor: onnx.TensorProto) -> Floats:
        return self._values(tensor).T if matrix.axis == 0 else self._values(tensor)

    def _fits(self, name: str) -> bool:
        return name in self.matrices and self.shape(name) == self.original.entries[name].shape

    def _values(self, tensor: onnx.TensorProto) -> Floats:
        return numpy_helper.to_array(tensor, base_dir=str(self._folder)).astype(np.float32)


def misplaced_codes(
    checkpoint: StoredCheckpoint, names: Sequence[str], progress: Progress = silent
) -> Iterator[tuple[str, str]]:
    """Those of the matrices `names` that are not the checkpoint's, with a clause for each."""
    for name in counted(names, "quantised weights", progress):
        said = _misplaced(checkpoint, name)
        if said is not None:
            yield name, f"{name} {said}"


def _misplaced(checkpoint: StoredCheckpoint, name: str) -> str | None:
    shape, scheme = checkpoint.original.entries[name].shape, checkpoint.quantisation.scheme_of(name)
    assert scheme is not None
    if name not in checkpoint.matrices:
        return "is not quantised in the file"
    matrix = checkpoint.matrices[name]
    if checkpoint.shape(name) != shape:
        return f"is {list(checkpoint.shape(name))} and not {list(shape)}"
    form = (matrix.block, matrix.codes.data_type, matrix.zero_points is not None)
    if form != (scheme.block_size, scheme.onnx, scheme.zero_points):
        kind = onnx.TensorProto.DataType.Name(matrix.codes.data_type)
        has = _form(kind, matrix.block, matrix.zero_points is not None)
        return f"has {has}, and the manifest says {_form(f'INT{scheme.bits}', scheme.block_size, scheme.zero_points)}"
    if not checkpoint.is_whole_order(name):
        return "takes its inputs in an order that has some twice, or none, or others"
    codes, scales = checkpoint.grid(name)
    wanted = checkpoint.original.read(name)
    same = checkpoint.is_taken_over(name)
    for start in range(0, len(codes), _OUTPUTS):
        rows = slice(start, start + _OUTPUTS)
        values = wanted[rows].float().numpy()
        if same:
            said = _other_values(values, codes[rows], scales[rows], start)
        else:
            beside = checkpoint.quantisation.is_calibrated(name)
            said = _off_grid(values, codes[rows], scales[rows], matrix, start, beside)
        if said is not None:
            return said
    return None


def _form(kind: str, block: int, zero_points: bool) -> str:
    return f"{kind} codes in blocks of {block}{' with zero points' if zero_points else ''}"


def _other_values(wanted: Floats, codes: Floats, scales: Floats, start: int) -> str | None:
    """What is wrong with some outputs of a matrix whose codes are the checkpoint's.

    The product of a code and a scale of 16 bits is exact in float32, on either side, so nothing is allowed.
    """
    other = ~(codes * scales == wanted)
    if not other.any():
        return None
    n, k = (int(i) for i in np.argwhere(other)[0])
    return (
        f"has other values than the checkpoint's codes stand for in {int(other.sum()):,} of {other.size:,} places: "
        f"[{start + n}, {k}] is code {int(codes[n, k])} of scale {scales[n, k]:.6g}, and the checkpoint's is "
        f"{wanted[n, k]:.6g}"
    )


def _off_grid(
    wanted: Floats, codes: Floats, scales: Floats, matrix: StoredMatrix, start: int, beside: bool
) -> str | None:
    """What is wrong with some outputs, from number `start` on, of a matrix; `beside`: a code may be off by one."""
    if not np.isfinite(scales).all():
        return "has scales that are not finite"
    low, high = matrix.ends
    steps = np.divide(wanted, scales, out=np.zeros_like(wanted), where=scales != 0)
    far = np.abs(np.clip(steps, low, high) - codes) > _HALF_A_STEP + beside * _BESIDE
    if far.any():
        n, k = (int(i) for i in np.argwhere(far)[0])
        nearest = "the nearest or one beside it" if beside else "the nearest"
        return (
            f"has another code than {nearest} in {int(far.sum()):,} of {far.size:,} values: [{start + n}, {k}] is "
            f"code {int(codes[n, k])} of scale {scales[n, k]:.6g}, and the checkpoint's {wanted[n, k]:.6g}"
        )
    first = np.arange(0, wanted.shape[1], matrix.block)
    largest = np.maximum.reduceat(np.abs(wanted), first, axis=1)
    if beside:
        size = np.abs(scales[:, first])
        least, most = (largest / reach for reach in reversed(_REACH))
        poor = (size < least * (1 - 2 * _DIGITS) - _TINY) | (size > most * (1 + 2 * _DIGITS) + _TINY)
    else:
        poor = _far_apart(wanted, codes * scales, largest, first, high)
    if poor.any():
        n, block = (int(i) for i in np.argwhere(poor)[0])
        k = int(first[block])
        return (
            f"has scales that do not fit in {int(poor.sum()):,} of {poor.size:,} blocks: that of [{start + n}, {k}] is "
            f"{scales[n, k]:.6g}, for values up to {largest[n, block]:.6g}"
        )
    return None


def _far_apart(
    wanted: Floats, found: Floats, largest: Floats, first: npt.NDArray[np.int64], high: int
) -> npt.NDArray[np.bool_]:
    """The blocks, which begin at the inputs `first`, that lose more than a scale costs that fits."""
    counts = np.diff(np.append(first, wanted.shape[1]))
    left = np.add.reduceat(np.square(found - wanted, dtype=np.float64), first, axis=1)
    plain = np.repeat(largest / high, counts, axis=1)
    rounded = np.divide(wanted, plain, out=np.zeros_like(wanted), where=plain != 0).round() * plain
    allowed = _POOR * np.add.reduceat(np.square(rounded - wanted, dtype=np.float64), first, axis=1)
    allowed += counts * np.square(largest * _DIGITS, dtype=np.float64) + 1e-12
    poor: npt.NDArray[np.bool_] = left > allowed
    return poor


def _matrices(model: onnx.ModelProto) -> dict[str, StoredMatrix]:
    tensors: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in model.graph.initializer}
    makers = {output: node for node in model.graph.node for output in node.output}

    def behind(name: str) -> onnx.TensorProto:
        """The initializer that a value is looked up in, or cast from."""
        while name not in tensors:
            if name not in makers or makers[name].op_type not in ("Cast", "Gather"):
                raise NotJudgedError(f"{name} of a DequantizeLinear is computed: blockexport writes no such graph")
            name = makers[name].input[0]
        return tensors[name]

    readers = {value: node for node in model.graph.node for value in node.input}
    found: dict[str, StoredMatrix] = {}
    for node in model.graph.node:
        if node.op_type != "DequantizeLinear":
            continue
        codes, scales, *zeros = (behind(name) for name in node.input)
        numbers: dict[str, Any] = {item.name: item.i for item in node.attribute}
        if codes.data_type not in _ENDS or len(codes.dims) != 2 or not numbers.get("block_size"):
            raise NotJudgedError(f"{node.name} dequantises in a form that blockexport does not write")
        name = codes.name.removesuffix(_CODES)
        # What is looked up by rows has an axis more in front, or two.
        axis = int(numbers["axis"]) if name != EMBEDDING else 1
        product = readers.get(node.output[0])
        gathered = makers.get(product.input[0]) if product is not None and product.op_type == "Gemm" else None
        order = None if gathered is None or gathered.op_type != "Gather" else tensors.get(gathered.input[1])
        zero_points = zeros[0] if zeros else None
        found[name] = StoredMatrix(codes, scales, axis, int(numbers["block_size"]), zero_points, order)
    return found
