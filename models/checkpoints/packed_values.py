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

_STRIP = 512  # inputs, or outputs, worked on at a time: a multiple of the codes of a word


def values_of(matrix: PackedMatrix, where: str) -> torch.Tensor:
    """The weight, float32 [N, K]. Beside it a strip of it is in memory.

    Raises:
        UsageError: see `check_zero_points`.
    """
    import torch

    values = np.empty(matrix.shape, np.float32)
    if matrix.packing.layout is PackedLayout.GPTQ:
        _fill_gptq(matrix, values, where)
    elif matrix.packing.layout is PackedLayout.AWQ:
        _fill_awq(matrix, values)
    else:
        _fill_compressed_tensors(matrix, values)
    return torch.from_numpy(values)


def _fill_gptq(matrix: PackedMatrix, values: Floats, where: str) -> None:
    bits, (outputs, width) = matrix.packing.bits, matrix.shape
    words, scales, groups = _words(matrix.codes), _floats(matrix.scales), _groups(matrix)
    zeros = _fields_of_columns(_words(matrix.zeros), bits, outputs) + matrix.packing.stored_less
    middle, in_word = 1 << (bits - 1), 32 // bits
    check_zero_points(matrix, int((zeros != middle).sum()), int((zeros >= 2 * middle).sum()), where)
    for start in range(0, width, _STRIP):
        strip = words[start // in_word : (start + _STRIP) // in_word]
        codes = np.empty((in_word * len(strip), outputs), np.int32)
        for place in range(in_word):
            codes[place::in_word] = _field(strip, place, bits)
        of = groups[start : start + _STRIP]
        values[:, start : start + _STRIP] = _scaled(codes - zeros[of], scales[of]).T


def _fill_awq(matrix: PackedMatrix, values: Floats) -> None:
    words, scales, groups = _words(matrix.codes), _floats(matrix.scales), _groups(matrix)
    zeros = _awq_fields(_words(matrix.zeros))
    for start in range(0, matrix.shape[1], _STRIP):
        of = groups[start : start + _STRIP]
        codes = _awq_fields(words[start : start + _STRIP])
        values[:, start : start + _STRIP] = _scaled(codes - zeros[of], scales[of]).T


def _fill_compressed_tensors(matrix: PackedMatrix, values: Floats) -> None:
    bits, (outputs, width) = matrix.packing.bits, matrix.shape
    words, scales, groups = _words(matrix.codes), _floats(matrix.scales), _groups(matrix)
    zeros = np.full((outputs, matrix.group_count), 1 << (bits - 1), np.int32)
    if matrix.zeros is not None:
        zeros = _fields_of_columns(_words(matrix.zeros).T, bits, outputs).T
    for start in range(0, outputs, _STRIP):
        rows = slice(start, start + _STRIP)
        codes = _fields_of_columns(words[rows], bits, width)
        values[rows] = _scaled(codes - zeros[rows][:, groups], scales[rows][:, groups])


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
