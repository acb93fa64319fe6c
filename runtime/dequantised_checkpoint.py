"""The weights of a quantised bundle as a checkpoint: what its quantised matrices stand for, and the rest."""

from __future__ import annotations

from pathlib import Path

import torch

from blockexport.export.bundle.check_graph import input_orders, read_graph
from blockexport.export.bundle.manifest import ONNX_FILE, Manifest
from blockexport.export.bundle.rope_file import ROPE_FILE
from blockexport.models.checkpoints.checkpoint import Checkpoint, FileSlice, Source, TensorEntry
from blockexport.models.checkpoints.mapped_tensor import tensor_of
from blockexport.models.checkpoints.safetensors_header import read_header
from blockexport.models.checkpoints.tensor_names import EMBEDDING, expected_tensors
from blockexport.models.errors import UsageError
from blockexport.models.quantised_matrix import (
    CODES,
    SCALES,
    ZERO_POINTS,
    QuantisationScheme,
    QuantisedMatrix,
    unpacked,
)
from blockexport.models.side_by_side import side_by_side


class DequantisedCheckpoint(Checkpoint):
    """The tensors that a quantised bundle's weights file has, matrices in float32.

    Raises:
        UsageError: the file lacks one, or is damaged.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        assert manifest.quantisation is not None
        self._quantisation = manifest.quantisation
        self.config = manifest.quantisation.stored_config(manifest.config)
        names = (name for name in manifest.files[ONNX_FILE].made_from if name != ROPE_FILE)
        files = tuple(folder / name for name in sorted(names))
        self.source = Source("safetensors", str(folder), files)
        self._stored = {
            name: TensorEntry(name, one.dtype, tuple(one.shape), FileSlice(path, one.offset, one.length))
            for path in files
            for name, one in read_header(path).items()
        }
        self._orders = dict(input_orders(read_graph(folder, manifest)))
        ends = manifest.interface.ends
        shapes = expected_tensors(self.config, ends)
        self._outputs = {name: shape[0] for name, shape in shapes.items()}
        self.entries = {name: self._entry(name, shape) for name, shape in shapes.items()}

    def read(self, name: str) -> torch.Tensor:
        """See `Checkpoint.read`."""
        scheme = self._quantisation.scheme_of(name)
        if scheme is None:
            return self._tensor(name)
        width = self.entries[name].shape[1]
        stored, columns, outputs = self._place(name)
        scales_GN, blocks = self._tensor(f"{stored}{SCALES}"), scheme.blocks(width)
        # Rows of an embedding are looked up; all else is multiplied by, inputs first.
        by_rows = name == EMBEDDING
        codes_KN = self._numbers(f"{stored}{CODES}", scheme, (width, outputs), by_rows=by_rows)[:, columns]
        zero_points_GN = None
        if scheme.zero_points:
            zeros = self._numbers(f"{stored}{ZERO_POINTS}", scheme, (blocks, outputs), by_rows=by_rows)
            zero_points_GN = zeros[:, columns]
        order_K = self._tensor(self._orders[stored]).long() if stored in self._orders else None
        scales_GN = (scales_GN.T if by_rows else scales_GN)[:, columns]
        return QuantisedMatrix(name, scheme, codes_KN, scales_GN, zero_points_GN, order_K).dequantised()

    def _place(self, name: str) -> tuple[str, slice, int]:
        """What a matrix is called in the file, with those beside it; its outputs there, and how many there are."""
        together = side_by_side(name, self._outputs)
        if together is None or f"{together.name}{CODES}" not in self._stored:
            return name, slice(None), self._outputs[name]
        return together.name, together.columns(name), sum(together.outputs.values())

    def _numbers(self, name: str, scheme: QuantisationScheme, shape: tuple[int, int], *, by_rows: bool) -> torch.Tensor:
        """Numbers of as many bits as codes, int8 of `shape`; they lie in the file turned over where it is by rows."""
        flat = unpacked(self._tensor(name).view(-1).view(torch.uint8), scheme.bits, shape[0] * shape[1])
        return flat.view(shape[::-1]).T if by_rows else flat.view(shape)

    def _entry(self, name: str, shape: tuple[int, ...]) -> TensorEntry:
        if self._quantisation.scheme_of(name) is None:
            return self._found(name)
        self._found(f"{self._place(name)[0]}{CODES}")
        return TensorEntry(name, "F32", shape)

    def _tensor(self, name: str) -> torch.Tensor:
        entry = self._found(name)
        assert entry.location is not None
        return tensor_of(entry.location, entry.dtype, entry.shape)

    def _found(self, name: str) -> TensorEntry:
        if name not in self._stored:
            raise UsageError(f"{self.source.reference} has no {name} in its weights file: copy the whole bundle again")
        return self._stored[name]
