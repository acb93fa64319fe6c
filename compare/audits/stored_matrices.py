"""The matrices that a quantised bundle has, read off its ONNX file, and held against the checkpoint's.

Its graph is judged on the weights that it has. Whether those are the checkpoint's is a question of its own: every code
has to be the one nearest to the checkpoint's value on the grid of its block, and the grid has to fit the block; in a
calibrated matrix it may be the one beside that, since what counts there are products. Where the checkpoint has such
codes itself, those of the bundle stand for exactly the values that it dequantises to.
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

from blockexport.compare.audits.code_rules import exact_values, nearest_codes, nearest_or_beside
from blockexport.compare.audits.coded_matrix import CodedCheckpoint, CodedMatrix, Rule
from blockexport.compare.audits.foreign_weights import fused_parts
from blockexport.export.bundle.manifest import ONNX_FILE
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING
from blockexport.models.checkpoints.untied_checkpoint import UntiedCheckpoint
from blockexport.models.errors import NotJudgedError
from blockexport.models.progress import Progress, counted, silent
from blockexport.models.quantisation import Quantisation

_CODES = ".codes"
_ENDS: Mapping[int, tuple[int, int]] = {onnx.TensorProto.INT4: (-8, 7), onnx.TensorProto.INT8: (-128, 127)}


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix as the graph dequantises it.

    Attributes:
        codes: the initializer of its codes.
        scales: the initializer that its scales are read from.
        axis: along which a block lies.
        block: codes that share a scale.
        outputs_first: it is [N, K], as a lookup or a product with `transB` takes it, and not [K, N].
        zero_points: the initializer of what is taken from the codes of a block, where there is one.
        order: the initializer of the input that each code along K is multiplied by, where that is not its own place.
        outputs: those that are this matrix's, where others lie beside it; None: all.
    """

    codes: onnx.TensorProto
    scales: onnx.TensorProto
    axis: int
    block: int
    outputs_first: bool
    zero_points: onnx.TensorProto | None = None
    order: onnx.TensorProto | None = None
    outputs: slice | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K]."""
        dims = tuple(self.codes.dims)
        outputs, inputs = dims if self.outputs_first else dims[::-1]
        return (outputs if self.outputs is None else len(range(outputs)[self.outputs])), inputs


class StoredCheckpoint(CodedCheckpoint):
    """The source's tensors, those that a bundle has quantised as its file has them.

    Attributes:
        original: the source, with an output head of its own where the bundle has one.
        matrices: what is quantised in the file, by the names of the tensors.

    `folder` is where the file lies, or `model`, where that is given, has its weights.

    Raises:
        NotJudgedError: the file dequantises something in a form that the exporter does not write.
    """

    def __init__(
        self, source: Checkpoint, folder: Path, quantisation: Quantisation, model: onnx.ModelProto | None = None
    ) -> None:
        untied = quantisation.stored_config(source.config) != source.config
        self.original = UntiedCheckpoint(source) if untied else source
        self.config, self.source, self.notes = self.original.config, source.source, source.notes
        self.range_is_stated = source.range_is_stated
        self.quantisation = quantisation
        self._folder = folder
        model = model or onnx.load(folder / ONNX_FILE, load_external_data=False)
        self.matrices = dict(self._parts(_matrices(model)))
        self.entries = {
            name: replace(entry, dtype="F32", location=None) if name in self.in_codes else entry
            for name, entry in self.original.entries.items()
        }

    def _parts(self, matrices: Mapping[str, StoredMatrix]) -> Iterator[tuple[str, StoredMatrix]]:
        """Each matrix by itself, where several of the checkpoint's lie side by side in one."""
        for name, matrix in matrices.items():
            start = 0
            for part, size in fused_parts(name, self.config).items():
                yield part, replace(matrix, outputs=slice(start, start + size))
                start += size
            if not start:
                yield name, matrix

    @property
    def base(self) -> Checkpoint:
        """See `Checkpoint.base`."""
        return self.original.base

    @property
    def adapter(self) -> Path | None:
        """See `Checkpoint.adapter`."""
        return self.original.adapter

    @property
    def wanted(self) -> list[str]:
        """Names of the tensors that the manifest says are quantised."""
        return [name for name in self.original.entries if self.quantisation.scheme_of(name) is not None]

    @property
    def in_codes(self) -> Mapping[str, StoredMatrix]:
        """See `CodedCheckpoint.in_codes`."""
        shapes = {name: entry.shape for name, entry in self.original.entries.items()}
        return {name: matrix for name, matrix in self.matrices.items() if shapes.get(name) == matrix.shape}

    def is_taken_over(self, name: str) -> bool:
        """Whether the checkpoint has a tensor in codes that the bundle can have, too, and so has to."""
        scheme, codes = self.quantisation.scheme_of(name), self.original.entries[name].codes
        return scheme is not None and codes is not None and scheme.holds(codes)

    def coded(self, name: str) -> CodedMatrix:
        """See `CodedCheckpoint.coded`."""
        matrix = self.matrices[name]
        across = matrix.axis == 0
        own = (matrix.outputs or slice(None)) if matrix.outputs_first != across else slice(None)
        codes, scales = (self._along(tensor, across)[own] for tensor in (matrix.codes, matrix.scales))
        zeros = None if matrix.zero_points is None else self._along(matrix.zero_points, across)[own].astype(np.float32)
        return CodedMatrix(
            codes_RA=codes.astype(np.int8),
            scales_RG=scales.astype(np.float32),
            zeros_RG=zeros,
            block=matrix.block,
            ends=_ENDS[matrix.codes.data_type],
            by_inputs=matrix.outputs_first == across,
            row_by_row=not across,
            order_K=self._order(name),
        )

    def blocks_of(self, name: str) -> tuple[int, torch.Tensor | None]:
        """See `CodedCheckpoint.blocks_of`."""
        order_K = self._order(name)
        return self.matrices[name].block, None if order_K is None else torch.from_numpy(order_K.copy())

    def is_whole_order(self, name: str) -> bool:
        """Whether the inputs of a matrix come in an order that has each of them once."""
        order = self.matrices[name].order
        return order is None or np.array_equal(np.sort(self._array(order)), np.arange(self.matrices[name].shape[1]))

    def rule(self, name: str) -> Rule:
        """See `CodedCheckpoint.rule`."""
        if self.is_taken_over(name):
            return exact_values
        return nearest_or_beside if self.quantisation.is_calibrated(name) else nearest_codes

    def _order(self, name: str) -> npt.NDArray[Any] | None:
        order = self.matrices[name].order
        return self._array(order) if order is not None and self.is_whole_order(name) else None

    def _along(self, tensor: onnx.TensorProto, across: bool) -> npt.NDArray[Any]:
        return self._array(tensor).T if across else self._array(tensor)

    def _array(self, tensor: onnx.TensorProto) -> npt.NDArray[Any]:
        return numpy_helper.to_array(tensor, base_dir=str(self._folder))


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
    stored = checkpoint.matrices[name]
    if stored.shape != shape:
        return f"is {list(stored.shape)} and not {list(shape)}"
    has_zeros = stored.zero_points is not None
    if (stored.block, stored.codes.data_type, has_zeros) != (scheme.block_size, scheme.onnx, scheme.zero_points):
        has = _form(onnx.TensorProto.DataType.Name(stored.codes.data_type), stored.block, has_zeros)
        return f"has {has}, and the manifest says {_form(f'INT{scheme.bits}', scheme.block_size, scheme.zero_points)}"
    if not checkpoint.is_whole_order(name):
        return "takes its inputs in an order that has some twice, or none, or others"
    matrix = checkpoint.coded(name)
    fault = checkpoint.rule(name)(matrix, matrix.turned(checkpoint.original.read(name)))
    return None if fault is None else fault.clause(matrix)


def _form(kind: str, block: int, zero_points: bool) -> str:
    return f"{kind} codes in blocks of {block}{' with zero points' if zero_points else ''}"


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
        block = _number(node, "block_size")
        if codes.data_type not in _ENDS or len(codes.dims) != 2 or not block:
            raise NotJudgedError(f"{node.name} dequantises in a form that blockexport does not write")
        name = codes.name.removesuffix(_CODES)
        # What is looked up by rows has an axis more in front, or two.
        axis = _number(node, "axis", 1) % 2 if name != EMBEDDING else 1
        product = readers.get(node.output[0])
        product = product if product is not None and product.op_type == "Gemm" else None
        gathered = makers.get(product.input[0]) if product is not None else None
        found[name] = StoredMatrix(
            codes,
            scales,
            axis,
            block,
            outputs_first=name == EMBEDDING or (product is not None and bool(_number(product, "transB"))),
            zero_points=zeros[0] if zeros else None,
            order=_order(gathered, tensors, codes.dims[0]),
        )
    return found


def _order(
    gathered: onnx.NodeProto | None, tensors: Mapping[str, onnx.TensorProto], inputs: int
) -> onnx.TensorProto | None:
    """The order in which a node gives a product its inputs; None where it gathers something else, as the last token."""
    if gathered is None or gathered.op_type != "Gather":
        return None
    order = tensors.get(gathered.input[1])
    return order if order is not None and list(order.dims) == [inputs] else None


def _number(node: onnx.NodeProto, name: str, default: int = 0) -> int:
    return next((int(item.i) for item in node.attribute if item.name == name), default)
