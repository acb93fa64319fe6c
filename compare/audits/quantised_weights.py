"""A checkpoint as another tool's file has it quantised: what onnxruntime's MatMulNBits holds, widened again.

Such a file cannot have the checkpoint's weights. Judged is whether its graph computes the model on the weights that it
does have, and, tensor by tensor, whether those are the checkpoint's to within a step of their own grid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from blockexport.compare.audits.foreign_weights import FUSED, fused_parts, plain_name
from blockexport.models.checkpoints.checkpoint import Checkpoint, TensorEntry
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import NotJudgedError

OPERATOR = "MatMulNBits"
SLACK = 1e-3  # of a step, or of a value: scales in half precision are rounded
_SUFFIX = re.compile(r"_(Q\d\w*|quant\w*)$")
EXACT = 1  # the accuracy_level at which activations stay in float32


@dataclass(frozen=True)
class Grid:
    """One matrix of the checkpoint, or some rows of a fused one, in a MatMulNBits."""

    node: onnx.NodeProto
    start: int
    rows: int


class QuantisedCheckpoint(Checkpoint):
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

    def read(self, name: str) -> torch.Tensor:
        """See `Checkpoint.read`."""
        return self.widen(name)[0] if name in self.grids else self.original.read(name)

    def widen(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """A quantised tensor [out, in], and the step of its grid at each value."""
        grid = self.grids[name]
        numbers = {item.name: item.i for item in grid.node.attribute}
        out, width, bits, block = numbers["N"], numbers["K"], numbers.get("bits", 4), numbers["block_size"]
        packed = self._read(grid.node.input[1]).reshape(out, -1, block * bits // 8)
        scales = self._read(grid.node.input[2]).astype(np.float32).reshape(out, -1, 1)
        zeros: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | float = float(1 << (bits - 1))
        if len(grid.node.input) > 3 and grid.node.input[3]:
            stored = self._read(grid.node.input[3])
            whole = _unpacked(stored.reshape(out, -1), bits) if stored.dtype == np.uint8 else stored.reshape(out, -1)
            zeros = whole[:, : scales.shape[1], None].astype(np.float32)
        values = (_unpacked(packed, bits).astype(np.float32) - zeros) * scales
        rows = slice(grid.start, grid.start + grid.rows)
        wide = values.reshape(out, -1)[rows, :width]
        steps = np.broadcast_to(np.abs(scales), values.shape).reshape(out, -1)[rows, :width]
        return torch.from_numpy(wide.copy()), torch.from_numpy(steps.copy())

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


def off_grid(checkpoint: QuantisedCheckpoint) -> Iterator[str]:
    """A clause for each tensor with values further than a step from the source's."""
    for name in checkpoint.grids:
        found, steps = checkpoint.widen(name)
        wanted = checkpoint.original.read(name).float()
        far = (found - wanted).abs() > steps * (1 + SLACK) + SLACK * wanted.abs()
        if bool(far.any()):
            at = [int(i) for i in far.nonzero()[0]]
            place = tuple(at)
            yield (
                f"{name} differs by more than a step of its grid in {int(far.sum()):,} of {far.numel():,} values: {at} "
                f"is {float(found[place]):.6g} and the checkpoint's {float(wanted[place]):.6g}"
            )


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
