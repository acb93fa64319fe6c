"""The codes of packed matrices, in the form that a bundle has them in: blocks along the inputs, group by group.

Words of 32 bits are taken apart as bytes. Layouts: `pack_to_int32` of https://github.com/neuralmagic/compressed-tensors,
`pack` of https://github.com/ModelCloud/GPTQModel, and the gemm form of https://github.com/casper-hansen/AutoAWQ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockexport.models.checkpoints.packed_matrices import PackedMatrix, check_zero_points, order_of, part
from blockexport.models.formats.packing import PackedLayout
from blockexport.models.quantised_matrix import QuantisationScheme, QuantisedMatrix

if TYPE_CHECKING:
    import torch

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word of the gemm form the code of each of eight neighbouring outputs stands."""


def codes_of(matrix: PackedMatrix, scheme: QuantisationScheme, where: str) -> QuantisedMatrix:
    """A packed matrix as codes in blocks.

    Args:
        matrix: whose groups are whole blocks of `scheme`.
        scheme: of its entry.
        where: the checkpoint, for messages.

    Raises:
        UsageError: an input is in a group that there is not; see `check_zero_points`.
    """
    width, bits, layout = matrix.shape[1], matrix.packing.bits, matrix.packing.layout
    packed, scales = part(matrix.codes), part(matrix.scales)
    if layout is PackedLayout.GPTQ:
        codes_KN = _along_rows(packed.T, bits).T
    elif layout is PackedLayout.AWQ:
        codes_KN = _awq(packed, bits)
    else:
        codes_KN, scales = _along_rows(packed, bits)[:, :width].T, scales.T
    order_K, _ = order_of(matrix, where)
    if order_K is not None:
        codes_KN = codes_KN[order_K]
    zeros_GN = _zero_points(matrix, where)
    return QuantisedMatrix(
        matrix.name,
        scheme,
        codes_KN.contiguous(),
        _of_blocks(scales, matrix, scheme),
        None if zeros_GN is None else _of_blocks(zeros_GN, matrix, scheme),
        order_K,
    )


def _of_blocks(values_GN: torch.Tensor, matrix: PackedMatrix, scheme: QuantisationScheme) -> torch.Tensor:
    """Each group's value for each of its blocks."""
    import torch

    width = matrix.shape[1]
    first = torch.arange(scheme.blocks(width)) * scheme.block_size
    return values_GN[first // matrix.group_size]


def _zero_points(matrix: PackedMatrix, where: str) -> torch.Tensor | None:
    """[G, N], less the middle of the codes, as codes are; None where all of them are 0 then."""
    import torch

    if matrix.zeros is None:
        return None
    packed, bits, outputs = part(matrix.zeros), matrix.packing.bits, matrix.shape[0]
    if matrix.packing.layout is PackedLayout.AWQ:
        return _awq(packed, bits)
    if matrix.packing.layout is PackedLayout.COMPRESSED_TENSORS:
        return _along_rows(packed.T, bits)[:, :outputs]
    zeros_GN = _along_rows(packed, bits)[:, :outputs].short() + matrix.packing.stored_less
    beyond = int((zeros_GN >= 1 << (bits - 1)).sum())
    check_zero_points(matrix, int(zeros_GN.count_nonzero()), beyond, where)
    return None if matrix.packing.symmetric else zeros_GN.to(torch.int8)


def _along_rows(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes int8 [R, C * 32 / bits] of words [R, C], the lowest bits first, less the middle of the codes."""
    import torch

    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return (octets ^ 128).view(torch.int8)
    codes = torch.stack([octets & 15, octets >> 4], dim=-1).view(torch.int8)
    return codes.view(len(words), -1) - 8


def _awq(words: torch.Tensor, bits: int) -> torch.Tensor:
    codes = _along_rows(words, bits)
    return codes.view(len(words), -1, len(_AWQ_ORDER))[:, :, _AWQ_ORDER].reshape(codes.shape)
