"""A checkpoint as another tool's file has it quantised: what onnxruntime's MatMulNBits holds, widened again.

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
from onnx import numpy_helper

from blockexport.compare.audits.code_rules import within_a_step
from blockexport.compare.audits.coded_matrix import CodedCheckpoint, CodedMatrix, Rule
from blockexport.compare.audits.foreign_weights import FUSED, fused_parts, plain_name
from blockexport.models.checkpoints.checkpoint import Checkpoint, TensorEntry
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import NotJudgedError

OPERATOR = "MatMulNBits"
_SUFFIX = re.compile(r"_(Q\d\w*|quant\w*)$")
EXACT = 1  # the accuracy_level at which activations stay in float32


@dataclass(frozen=True)
class Grid:
    """One matrix of the checkpoint, or some rows of a fused one, in a MatMulNBits."""

    node: onnx.NodeProto
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
        numbers = {item.name: item.i for item in grid.node.attribute}
        out, width, bits, block = numbers["N"], numbers["K"], numbers.get("bits", 4), numbers["block_size"]
        half = 1 << (bits - 1)
        packed = self._read(grid.node.input[1]).reshape(out, -1)
        scales = self._read(grid.node.input[2]).astype(np.float32).reshape(out, -1)
        codes = (_unpacked(packed, bits).astype(np.int16) - half).astype(np.int8)
        zeros = None
        if len(grid.node.input) > 3 and grid.node.input[3]:
            stored = self._read(grid.node.input[3])
            whole = _unpacked(stored.reshape(out, -1), bits) if stored.dtype == np.uint8 else stored.reshape(out, -1)
            zeros = whole[:, : scales.shape[1]].astype(np.float32) - half
        whole_matrix = CodedMatrix(codes[:, :width], scales, zeros, block, (-half, half - 1))
        return whole_matrix.rows(slice(grid.start, grid.start + grid.rows))

    def rule(self, name: str) -> Rule:
        """See `CodedCheckpoint.rule`."""
        return within_a_step

    def _read(self, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        return numpy_helper.to_array(self._tensors[name], base_dir=str(self._folder))


def with_exact_activations(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """A copy of a model that lets the runtime round activations to 8 bits, without that; None where it does not."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    levels = [
        item
        for node in copy.graph.node
        for item in node.attribute
        if node.op_type == OPERATOR and item.name == "accuracy_level" and item.i != EXACT
    ]
    for item in levels:
        item.i = EXACT
    return copy if levels else None


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether it has a MatMulNBits."""
    return any(node.op_type == OPERATOR for node in model.graph.node)


def off_grid(checkpoint: QuantisedCheckpoint) -> Iterator[tuple[str, str]]:
    """The tensors with values further than a step from the source's, with a clause for each."""
    for name in checkpoint.grids:
        matrix = checkpoint.coded(name)
        fault = checkpoint.rule(name)(matrix, checkpoint.original.read(name))
        if fault is not None:
            yield name, f"{name} {fault.clause(matrix)}"


def _grids(model: onnx.ModelProto, source: Checkpoint, config: ModelConfig) -> Iterator[tuple[str, Grid]]:
    for node in model.graph.node:
        if node.op_type != OPERATOR:
            continue
        plain = plain_name(_SUFFIX.sub("", node.input[1])) or node.input[1]
        parts = fused_parts(plain, config) if FUSED in plain else {plain: 0}
        start = 0
        for name, rows in parts.items():
            if name not in source.entries:
                raise NotJudgedError(
                    f"the quantised matrix {node.input[1]} of {node.name} is no tensor of the checkpoint by its name, "
                    "so the model on the file's weights cannot be made to judge it against"
                )
            size = source.entries[name].shape[0]
            yield name, Grid(node, start, rows or size)
            start += rows or size


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
