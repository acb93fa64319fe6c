"""Mistakes with the scales of a matrix, undone: whose they are, and by what they are off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from blockexport.compare.audits.coded_matrix import CodedMatrix, Fault, Floats, Mask, strips
from blockexport.compare.audits.undone import Undone

FACTORS = (2.0, 0.5, -1.0, 4.0, 0.25, 16.0, 1 / 16, 7 / 8, 8 / 7, 127 / 128, 128 / 127)
"""What scales are off by: a shift, a lost sign, and ends of a grid that is not symmetric taken for one another."""

_ROUNDED = 4e-3  # of a scale that is restored: it was rounded to 16 bits in between
_LIKE = 0.02  # a measured factor is taken for one of `FACTORS` that is no further away


def along_the_other_axis(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    """Scales in the order of the file, as those of blocks along the other axis, in either order."""
    rows, along = matrix.codes_RA.shape
    scales = matrix.scales_RG if matrix.row_by_row else matrix.scales_RG.T
    blocks = -(-rows // matrix.block)
    if scales.size != blocks * along or matrix.zeros_RG is not None:
        return
    turned = replace(
        matrix, codes_RA=matrix.codes_RA.T, by_inputs=not matrix.by_inputs, row_by_row=not matrix.row_by_row
    )
    for scales_RG in (scales.reshape(blocks, along).T, scales.reshape(along, blocks)):
        yield Undone(replace(turned, scales_RG=scales_RG), wanted_RA.T)


def table_turned_over(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    """The table of scales was read by rows where it lay by columns, or the other way round."""
    rows, blocks = matrix.scales_RG.shape
    if min(rows, blocks) == 1:
        return
    for scales in (matrix.scales_RG.reshape(blocks, rows).T, matrix.scales_RG.T.reshape(rows, blocks)):
        yield Undone(replace(matrix, scales_RG=np.ascontiguousarray(scales)), wanted_RA)


def of_a_neighbour(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    """Each scale is the one that the block before it, or after it, should have; or each that does not fit is."""
    for axis, what in ((1, "block"), (0, "row")):
        for step, where in ((-1, "before"), (1, "after")):
            moved = np.roll(matrix.scales_RG, step, axis)
            lost = np.zeros_like(fault.wrong_RG)
            lost[(slice(None),) * axis + (-1 if step < 0 else 0,)] = True
            for scales in (moved, np.where(fault.wrong_RG, moved, matrix.scales_RG)):
                yield Undone(replace(matrix, scales_RG=scales), wanted_RA, lost, f", the {what} {where} it")


def off_by_a_factor(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    """What the scales of the wrong blocks have to be multiplied by is one number, and one of those in use."""
    fitted = _fitted(matrix, wanted_RA)[fault.wrong_RG]
    stored = matrix.scales_RG[fault.wrong_RG]
    ratios = np.divide(fitted, stored, out=np.ones_like(fitted), where=stored != 0)
    measured = float(np.median(ratios))
    factor = min(FACTORS, key=lambda factor: abs(factor - measured))
    if abs(factor - measured) > _LIKE * abs(factor):
        return
    for which in (fault.wrong_RG, np.ones_like(fault.wrong_RG)):
        scales = np.where(which, matrix.scales_RG * np.float32(factor), matrix.scales_RG)
        yield Undone(
            replace(matrix, scales_RG=scales, room=_ROUNDED), wanted_RA, detail=_told(matrix, which, 1 / factor)
        )


def _told(matrix: CodedMatrix, which_RG: Mask, times: float) -> str:
    """How many blocks have scales that are so many times too large."""
    count = int(which_RG.sum())
    row, block = (int(i) for i in np.argwhere(which_RG)[0])
    place = matrix.place(row, block * matrix.block)
    which = f"the block at {place}" if count == 1 else f"{count:,} of {which_RG.size:,} blocks"
    return f", {times:.4g} times what it should be, in {which}"


def _fitted(matrix: CodedMatrix, wanted_RA: torch.Tensor) -> Floats:
    """The scale of each block that fits its codes best."""
    found: list[npt.NDArray[np.float32]] = []
    for rows in strips(matrix):
        part = matrix.rows(rows)
        numbers, wanted = part.numbers(), wanted_RA[rows].float().numpy()
        products = np.add.reduceat(numbers * wanted, part.starts, axis=1)
        squares = np.add.reduceat(np.square(numbers), part.starts, axis=1)
        found.append(np.divide(products, squares, out=np.zeros_like(products), where=squares != 0))
    return np.concatenate(found)
