"""Mistakes that files make with matrices in codes: which of them, undone, gives the matrix that should be there?

A mistake is named when undoing it leaves nothing wrong, by the very rule that the matrix breaks. Where it has lost
something (the last block has no next one to get its scale back from), the blocks concerned are left out, as long as
at least a quarter of those that were wrong are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from blockexport.compare.audits.coded_matrix import CodedMatrix, Fault, Floats, Mask, Rule, strips

FACTORS = (2.0, 0.5, -1.0, 4.0, 0.25, 16.0, 1 / 16, 7 / 8, 8 / 7, 127 / 128, 128 / 127)
"""What scales are off by: a shift, a lost sign, and ends of a grid that is not symmetric taken for one another."""

_ROUNDED = 4e-3  # of a scale that is restored: it was rounded to 16 bits in between
_LIKE = 0.02  # a measured factor is taken for one of `FACTORS` that is no further away
_ROWS = 512  # of a matrix are enough to tell which of its inputs is which
_INPUTS = 1 << 10  # held at a time against all


@dataclass(frozen=True)
class Undone:
    """A matrix with a mistake undone.

    Attributes:
        matrix: what the file should then have had.
        wanted_RA: what it should stand for, lying as the matrix does.
        lost_RG: blocks that cannot be restored; None: all can.
        detail: what is particular to the case, after the mistake's own words; empty where nothing is.
    """

    matrix: CodedMatrix
    wanted_RA: torch.Tensor
    lost_RG: Mask | None = None
    detail: str = ""


@dataclass(frozen=True)
class CodingMistake:
    """One mistake.

    Attributes:
        name: short and stable, for programs.
        title: a few words, for lists.
        cause: for people, a sentence without its full stop.
        undo: gives what may have been meant, likeliest first, where there is anything; called with the matrix, what it
            should stand for [R, A], and what is wrong with it.
    """

    name: str
    title: str
    cause: str
    undo: Callable[[CodedMatrix, torch.Tensor, Fault], Iterator[Undone]]


@dataclass(frozen=True)
class NamedMistake:
    """A mistake that explains a matrix, and what is particular to it."""

    mistake: CodingMistake
    detail: str

    @property
    def words(self) -> str:
        """A sentence without its full stop."""
        return self.mistake.cause + self.detail


def mistake_in(
    matrix: CodedMatrix, weight_NK: torch.Tensor, rule: Rule, tried: Sequence[CodingMistake]
) -> NamedMistake | None:
    """The first of the mistakes `tried` that explains a matrix.

    Args:
        matrix: as the file has it.
        weight_NK: what it should stand for.
        rule: what is asked of it.
        tried: from `MISTAKES`.
    """
    wanted_RA = matrix.turned(weight_NK)
    fault = rule(matrix, wanted_RA)
    if fault is None:
        return None
    undone = ((mistake, undone) for mistake in tried for undone in mistake.undo(matrix, wanted_RA, fault))
    return next((NamedMistake(m, u.detail) for m, u in undone if _explains(u, rule, fault)), None)


def _explains(undone: Undone, rule: Rule, fault: Fault) -> bool:
    """Whether nothing is wrong any more, in enough of what was."""
    lost_RG = np.zeros_like(fault.wrong_RG) if undone.lost_RG is None else undone.lost_RG
    if 4 * (fault.wrong_RG & ~lost_RG).sum() < fault.wrong_RG.sum():
        return False
    left = rule(undone.matrix, undone.wanted_RA)
    return left is None or (undone.lost_RG is not None and not (left.wrong_RG & ~lost_RG).any())


def _nibbles(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    if matrix.ends[1] > 7:
        return
    codes = matrix.codes_RA if matrix.row_by_row else matrix.codes_RA.T
    flat = codes.reshape(-1).copy()
    pairs = flat[: flat.size // 2 * 2].reshape(-1, 2)
    pairs[:] = pairs[:, ::-1].copy()
    swapped = flat.reshape(codes.shape)
    yield Undone(replace(matrix, codes_RA=swapped if matrix.row_by_row else swapped.T), wanted_RA)


def _signs(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    half = -matrix.ends[0]
    shifted = matrix.codes_RA.astype(np.int16)
    shifted += np.where(shifted < 0, half, -half).astype(np.int16)
    yield Undone(replace(matrix, codes_RA=shifted.astype(np.int8)), wanted_RA, detail=f" by {half}")


def _axis(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
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


def _neighbours(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    """Each scale is the one that the block before it, or after it, should have; or each that does not fit is."""
    for axis, what in ((1, "block"), (0, "row")):
        for step, where in ((-1, "before"), (1, "after")):
            moved = np.roll(matrix.scales_RG, step, axis)
            lost = np.zeros_like(fault.wrong_RG)
            lost[(slice(None),) * axis + (-1 if step < 0 else 0,)] = True
            for scales in (moved, np.where(fault.wrong_RG, moved, matrix.scales_RG)):
                yield Undone(replace(matrix, scales_RG=scales), wanted_RA, lost, f", the {what} {where} it")


def _factor(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
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


def _clipped(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    """The smallest code is one short of the type's, and stands where that one belongs."""
    low = matrix.ends[0]
    codes = matrix.codes_RA.copy()
    if int(codes.min()) != low + 1:
        return
    for rows in strips(matrix):
        part = matrix.rows(rows)
        steps = wanted_RA[rows].float().numpy() / part.spread(part.scales_RG)
        codes[rows][(part.codes_RA == low + 1) & (steps.round() <= low)] = low
    yield Undone(replace(matrix, codes_RA=codes), wanted_RA, detail=f" at {low + 1}, where {low} belongs")


def _permuted(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    """Each input's column is the one of the weight that it is most like, if that makes every one somebody's."""
    weight_NK = wanted_RA.T if matrix.by_inputs else wanted_RA
    width = weight_NK.shape[1]
    part = matrix if matrix.by_inputs else matrix.rows(slice(_ROWS))
    found_NK, some_NK = (_columns(x[:_ROWS].float()) for x in (replace(part, order_K=None).dequantised(), weight_NK))
    order = torch.cat([(columns.T @ some_NK).argmax(1) for columns in found_NK.split(_INPUTS, dim=1)])
    moved = int((order != torch.arange(width)).sum())
    if moved and len(order.unique()) == width:
        wanted_NK = weight_NK[:, order]
        detail = f": {moved:,} of {width:,} inputs are in other places"
        yield Undone(matrix, wanted_NK.T if matrix.by_inputs else wanted_NK, detail=detail)


def _columns(values_NK: torch.Tensor) -> torch.Tensor:
    """Columns of length one."""
    return torch.nn.functional.normalize(values_NK.nan_to_num(), dim=0)


def _groups(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    """Each input has the scales of another block than the one it stands in, as GPTQ's `g_idx` may say."""
    if matrix.by_inputs or matrix.zeros_RG is not None:
        return
    codes = matrix.codes_RA[:_ROWS].astype(np.float32)
    wanted, scales = wanted_RA[:_ROWS].float().numpy(), matrix.scales_RG[:_ROWS]
    errors = [np.square(codes * scale[:, None] - wanted).sum(0) for scale in scales.T]
    groups, own = np.argmin(errors, axis=0), np.arange(codes.shape[1]) // matrix.block
    whole_blocks = (groups == groups[own * matrix.block]).all()  # which is another mistake, or none
    if whole_blocks or (np.sort(groups) != own).any():
        return
    order = np.argsort(groups, kind="stable")
    sorted_by_block = replace(matrix, codes_RA=matrix.codes_RA[:, order])
    yield Undone(sorted_by_block, wanted_RA[:, torch.from_numpy(order)])


def _zeros(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    """The code that stands for 0 in each block is the middle one of those that its values ask for."""
    zeros_RG = np.empty_like(matrix.scales_RG)
    for rows in strips(matrix):
        part = matrix.rows(rows)
        scales, wanted = part.spread(part.scales_RG), wanted_RA[rows].float().numpy()
        steps = np.divide(wanted, scales, out=np.zeros_like(wanted), where=scales != 0)
        ends = [*part.starts[1:], wanted.shape[1]]
        apart = part.codes_RA - steps
        for block, (start, stop) in enumerate(zip(part.starts, ends, strict=True)):
            zeros_RG[rows, block] = np.median(apart[:, start:stop], axis=1).round()
    there = np.zeros_like(zeros_RG) if matrix.zeros_RG is None else matrix.zeros_RG
    if (zeros_RG != there).any():
        yield Undone(replace(matrix, zeros_RG=np.where(fault.wrong_RG, zeros_RG, there)), wanted_RA)


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


MISTAKES: tuple[CodingMistake, ...] = (
    CodingMistake("nibbles_swapped", "nibbles swapped", "the two codes in each byte have changed places", _nibbles),
    CodingMistake(
        "codes_off_by_half",
        "codes off by half their range",
        "codes are read with another sign than written: off",
        _signs,
    ),
    CodingMistake(
        "block_axis",
        "blocks along the wrong axis",
        "scales are those of blocks along the other axis, of outputs where it should be inputs",
        _axis,
    ),
    CodingMistake("scale_factor", "scale off by a factor", "a scale is not the one its codes were made for", _factor),
    CodingMistake(
        "neighbour_scale", "scale of a neighbour", "blocks have the scale that belongs to a neighbour", _neighbours
    ),
    CodingMistake("codes_clipped", "codes clipped early", "codes are clipped", _clipped),
    CodingMistake(
        "order_dropped",
        "order of the inputs dropped",
        "inputs are in another order, as where that of quantising (act-order) is not put back",
        _permuted,
    ),
    CodingMistake(
        "groups_dropped",
        "groups of the inputs dropped",
        "which block's scales an input has (act-order, g_idx) is ignored",
        _groups,
    ),
    CodingMistake(
        "zero_point_ignored", "zero point ignored", "codes were made with zero points, which are ignored", _zeros
    ),
)
"""All that are known, in the order in which they are tried: what has fewer ways to be true goes first."""
