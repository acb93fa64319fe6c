"""A checkpoint as another tool's file has it quantised: what onnxruntime's operators on codes hold, widened again.

Such a file cannot have the checkpoint's weights. Judged is whether its graph computes the model on the weights that it
does have, and, tensor by tensor, whether those are the checkpoint's to within a step of their own grid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from blockexport.compare.audits.code_rules import within_a_step
from blockexport.compare.audits.coded_matrix import CodedCheckpoint, CodedMatrix, Rule
from blockexport.compare.audits.foreign_weights import fused_parts, plain_name
from blockexport.models.checkpoints.checkpoint import Checkpoint, TensorEntry
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD
from blockexport.models.checkpoints.untied_checkpoint import UntiedCheckpoint
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import NotJudgedError

OPERATOR, LOOKUP = "MatMulNBits", "GatherBlockQuantized"
_SUFFIX = re.compile(r"_(Q\d\w*|quant\w*)$")
EXACT, IN_INTEGERS = 1, 4  # the accuracy_level at which activations stay in float32, and that of 8 bits


@dataclass(frozen=True)
class Grid:
    """One matrix of the checkpoint, or some rows of a fused one, in a MatMulNBits or a GatherBlockQuantized.

    Attributes:
        parts: names of the initializers with its codes, its scales, and its zero points where it has them.
        shape: of the whole matrix, [out, in].
        bits: of a code.
        block_size: consecutive inputs that share a scale.
        start: of the rows.
        rows: how many.
    """

    parts: tuple[str, ...]
    shape: tuple[int, int]
    bits: int
    block_size: int
    start: int
    rows: int


class QuantisedCheckpoint(CodedCheckpoint):
    """The source's tensors, those that a file quantises as the file has them.

    Attributes:
        grids: where each quantised tensor is.

    Raises:
        NotJudgedError: a quantised matrix that belongs to no tensor by its name.
    """

    def __init__(self, source: Checkpoint, model: onnx.ModelProto, folder: Path) -> None:
        if source.config.tie_word_embeddings and any(_plain(node) == OUTPUT_HEAD for node in _products(model)):
            source = UntiedCheckpoint(source)  # the product and the lookup are of codes of their own, or of the same
        self.original = source
        self.config, self.source, self.notes = source.config, source.source, source.notes
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._folder = folder
        self.grids = dict(_grids(model, source, self.config))
        self.entries = {
            name: _widened(entry) if name in self.grids else entry for name, entry in source.entries.items()
        }

    @property
    def in_codes(self) -> Mapping[str, Grid]:
        """See `CodedCheckpoint.in_codes`."""
        return self.grids

    def coded(self, name: str) -> CodedMatrix:
        """See `CodedCheckpoint.coded`."""
        grid = self.grids[name]
        (out, width), bits = grid.shape, grid.bits
        half = 1 << (bits - 1)
        packed = self._read(grid.parts[0]).reshape(out, -1)
        scales = self._read(grid.parts[1]).astype(np.float32).reshape(out, -1)
        codes = (_unpacked(packed, bits).astype(np.int16) - half).astype(np.int8)
        zeros = None
        if len(grid.parts) > 2:
            stored = self._read(grid.parts[2])
            whole = _unpacked(stored.reshape(out, -1), bits) if stored.dtype == np.uint8 else stored.reshape(out, -1)
            zeros = whole[:, : scales.shape[1]].astype(np.float32) - half
        whole_matrix = CodedMatrix(codes[:, :width], scales, zeros, grid.block_size, (-half, half - 1))
        return whole_matrix.rows(slice(grid.start, grid.start + grid.rows))

    def blocks_of(self, name: str) -> tuple[int, torch.Tensor | None]:
        """See `CodedCheckpoint.blocks_of`."""
        return self.grids[name].block_size, None

    def rule(self, name: str) -> Rule:
        """See `CodedCheckpoint.rule`."""
        return within_a_step

    def _read(self, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        return numpy_helper.to_array(self._tensors[name], base_dir=str(self._folder))


def rounds_to_8_bits(model: onnx.ModelProto) -> bool:
    """Whether a model lets the runtime round activations to 8 bits before each product by quantised weights."""
    return {item.i for item in _levels(model)} == {IN_INTEGERS}


def with_exact_activations(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """A copy of a model that lets the runtime round activations, without that; None where it does not."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    levels = [item for item in _levels(copy) if item.i != EXACT]
    for item in levels:
        item.i = EXACT
    return copy if levels else None


def _levels(model: onnx.ModelProto) -> Iterator[onnx.AttributeProto]:
    return (item for node in _products(model) for item in node.attribute if item.name == "accuracy_level")


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether it has a MatMulNBits, or looks its embedding up in codes."""
    return any(node.op_type in (OPERATOR, LOOKUP) for node in model.graph.node)


def off_grid(checkpoint: QuantisedCheckpoint) -> Iterator[tuple[str, str]]:
    """The tensors with values further than a step from the source's, with a clause for each."""
    for name in checkpoint.grids:
        matrix = checkpoint.coded(name)
        fault = checkpoint.rule(name)(matrix, checkpoint.original.read(name))
        if fault is not None:
            yield name, f"{name} {fault.clause(matrix)}"


def _products(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return (node for node in model.graph.node if node.op_type == OPERATOR)


def _plain(node: onnx.NodeProto) -> str:
    """The checkpoint's name for what a MatMulNBits multiplies by."""
    return plain_name(_SUFFIX.sub("", node.input[1])) or node.input[1]


def _grids(model: onnx.ModelProto, source: Checkpoint, config: ModelConfig) -> Iterator[tuple[str, Grid]]:
    for node in _products(model):
        numbers = {item.name: item.i for item in node.attribute}
        named = tuple(name for name in node.input[1:4] if name)
        plain, shape = _plain(node), (numbers["N"], numbers["K"])
        parts = fused_parts(plain, config) or {plain: 0}
        start = 0
        for name, rows in parts.items():
            if name not in source.entries:
                raise NotJudgedError(
                    f"the quantised matrix {node.input[1]} of {node.name} is no tensor of the checkpoint by its name, "
                    "so the model on the file's weights cannot be made to judge it against"
                )
            size = source.entries[name].shape[0]
            yield name, Grid(named, shape, numbers.get("bits", 4), numbers["block_size"], start, rows or size)
            start += rows or size
    for node in model.graph.node:
        if node.op_type == LOOKUP:
            yield EMBEDDING, _lookup(model, node, source.entries[EMBEDDING].shape)


def _lookup(model: onnx.ModelProto, node: onnx.NodeProto, shape: tuple[int, ...]) -> Grid:
    """The embedding, whose rows a GatherBlockQuantized looks up.

    Raises:
        NotJudgedError: it is looked up along other axes, or its codes are of another type than bytes.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    makers = {output: maker for maker in model.graph.node for output in maker.output}
    codes = node.input[0]
    while codes in makers and makers[codes].op_type == "Reshape":  # a tied head has them in blocks
        codes = makers[codes].input[0]
    numbers = {item.name: item.i for item in node.attribute}
    along = (numbers.get("gather_axis", 0), numbers.get("quantize_axis", 1))
    if along not in ((0, 1), (0, -1)) or codes not in tensors or tensors[codes].data_type != onnx.TensorProto.UINT8:
        raise NotJudgedError(f"{node.name} looks up codes in a form that is not known here: rows of bytes are")
    named = (codes, *(name for name in node.input[2:4] if name))
    bits, block_size = numbers.get("bits", 4), numbers.get("block_size", 128)
    return Grid(named, (shape[0], shape[1]), bits, block_size, 0, shape[0])


def _widened(entry: TensorEntry) -> TensorEntry:
    return replace(entry, dtype="F32", location=None)


def _unpacked(
    packed: np.ndarray[tuple[int, ...], np.dtype[np.generic]], bits: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Numbers of 4 or 8 bits along the last axis, the low half of a byte first."""
    if bits == 8:
        return packed
    halves = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)  # type: ignore[operator]
    return halves.reshape(*packed.shape[:-1], -1)
