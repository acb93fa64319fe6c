"""What packed matrices stand for, worked out by each layout's own formula.

`(code - zero point) * scale`, every code shifted out of its word, and every input looked up in the group that the file
puts it in. Nothing here is shared with `packed_codes.py`: a defect there would reach both sides of a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blockexport.models.checkpoints.checkpoint import TensorEntry
from blockexport.models.checkpoints.mapped_tensor import tensor_of
from blockexport.models.checkpoints.packed_matrices import PackedMatrix, check_zero_points
from blockexport.models.element_types import BY_SAFETENSORS
from blockexport.models.formats.packing import PackedLayout

if TYPE_CHECKING:
    import torch

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]


def values_of(matrix: PackedMatrix, where: str) -> torch.Tensor:
    """The weight, float32 [N, K].

    Raises:
        UsageError: see `check_zero_points`.
    """
    import torch

    values = {
        PackedLayout.GPTQ: _gptq,
        PackedLayout.AWQ: _awq,
        PackedLayout.COMPRESSED_TENSORS: _compressed_tensors,
    }[matrix.packing.layout](matrix, where)
    return torch.from_numpy(np.ascontiguousarray(values))


def _gptq(matrix: PackedMatrix, where: str) -> Floats:
    bits, (outputs, width) = matrix.packing.bits, matrix.shape
    words, scales = _words(matrix.codes), _floats(matrix.scales)
    codes = np.empty((width, outputs), np.int32)
    for place in range(32 // bits):
        codes[place :: 32 // bits] = _field(words, place, bits)
    zeros = _fields_of_columns(_words(matrix.zeros), bits, scales.shape[1]) + matrix.packing.stored_less
    middle = 1 << (bits - 1)
    check_zero_points(matrix, int((zeros != middle).sum()), int((zeros >= 2 * middle).sum()), where)
    groups = _groups(matrix)
    return _scaled(codes - zeros[groups], scales[groups]).T


def _awq(matrix: PackedMatrix, _: str) -> Floats:
    codes, zeros = (_awq_fields(_words(entry)) for entry in (matrix.codes, matrix.zeros))
    groups = _groups(matrix)
    return _scaled(codes - zeros[groups], _floats(matrix.scales)[groups]).T


def _compressed_tensors(matrix: PackedMatrix, _: str) -> Floats:
    bits, (outputs, width) = matrix.packing.bits, matrix.shape
    codes = _fields_of_columns(_words(matrix.codes), bits, width)
    zeros: Integers | int = 1 << (bits - 1)
    groups = _groups(matrix)
    if matrix.zeros is not None:
        zeros = _fields_of_columns(_words(matrix.zeros).T, bits, outputs).T[:, groups]
    return _scaled(codes - zeros, _floats(matrix.scales)[:, groups])


def _scaled(steps: Integers, scales: Floats) -> Floats:
    return steps.astype(np.float32) * scales


def _groups(matrix: PackedMatrix) -> npt.NDArray[Any]:
    """The group of each input."""
    usual = np.arange(matrix.shape[1]) // matrix.group_size
    if matrix.groups is None:
        return usual
    stated = _words(matrix.groups)
    return usual if (stated == -1).all() else stated


def _field(words: Integers, place: int, bits: int) -> Integers:
    return (words >> (place * bits)) & ((1 << bits) - 1)


def _fields_of_columns(words: Integers, bits: int, count: int) -> Integers:
    """The first `count` fields of each row, the lowest bits first."""
    fields = [_field(words, place, bits) for place in range(32 // bits)]
    return np.stack(fields, axis=-1).reshape(len(words), -1)[:, :count]


def _awq_fields(words: Integers) -> Integers:
    """Fields of 4 bits of each row: of eight outputs, those of even number stand before those of odd number."""
    out = np.empty((len(words), 8 * words.shape[1]), np.int32)
    for place, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        out[:, output::8] = _field(words, place, 4)
    return out


def _words(entry: TensorEntry | None) -> Integers:
    assert entry is not None and entry.location is not None
    raw = tensor_of(entry.location, "U8", (entry.location.length,)).numpy()
    words: Integers = raw.view("<i4").astype(np.int32, copy=False).reshape(entry.shape)
    return words


def _floats(entry: TensorEntry) -> Floats:
    assert entry.location is not None
    raw = tensor_of(entry.location, "U8", (entry.location.length,)).numpy()
    if entry.dtype == "BF16":  # the upper half of a float32, of which NumPy knows none
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(entry.shape)
    return raw.view(BY_SAFETENSORS[entry.dtype].name).astype(np.float32).reshape(entry.shape)
