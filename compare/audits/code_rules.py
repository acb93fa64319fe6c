"""What is asked of a matrix in codes: four rules, of which one holds for each matrix.

A bundle takes a checkpoint's own codes over as they are; what it quantises itself has the codes nearest to the values,
on grids that fit, or where it was calibrated, which is about products, codes beside those. What another tool made may
be rounded in ways of its own, as long as no value is a step away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from blockexport.compare.audits.coded_matrix import CodedMatrix, Fault, Floats, Mask, strips

_HALF_A_STEP = 0.5 + 1e-3  # with room for the rounding of a quotient in float32
_BESIDE = 1.0  # steps more, of a calibrated matrix
_REACH = (5.0, 12.0)  # steps to the largest value of a block of a calibrated matrix, at least and at most
_POOR = 2.0  # times the squared error that the plain rule leaves, the largest value at the last code
_TINY = 2.0**-25  # half the spacing of float16 near 0: what storing a very small scale in it costs
_DIGITS = 1 / 512  # of the largest value: what storing a scale in 16 bits costs a block of few values
_SLACK = 1e-3  # of a code: it may have been chosen before its scale was rounded to 16 bits
_MOSTLY = 0.95  # of the codes: a tool that has so many nearest ones rounds to nearest
_NEARLY = 0.9  # of a step: in a file of such a tool a code so far from its value is none that rounding gave
_BEYOND = 3.0  # steps that a value may lie beyond the end of its grid: a search for scales clips the largest


_RuleOfRows = Callable[[CodedMatrix, Floats], Fault | None]


def exact_values(matrix: CodedMatrix, wanted_RA: torch.Tensor) -> Fault | None:
    """The values are the same.

    The product of a code and a scale of 16 bits is exact in float32, on either side, so nothing is allowed.
    """
    return _by_strips(_exact, matrix, wanted_RA)


def nearest_codes(matrix: CodedMatrix, wanted_RA: torch.Tensor) -> Fault | None:
    """Each code is the nearest to its value, and the grid of each block fits it."""
    return _by_strips(partial(_nearest, beside=False), matrix, wanted_RA)


def nearest_or_beside(matrix: CodedMatrix, wanted_RA: torch.Tensor) -> Fault | None:
    """Each code is the nearest to its value or one beside it, and the grid of each block reaches about as far as it."""
    return _by_strips(partial(_nearest, beside=True), matrix, wanted_RA)


def within_a_step(matrix: CodedMatrix, wanted_RA: torch.Tensor) -> Fault | None:
    """No value is a step of its grid away; where all but a few codes are nearest, so that the tool that made them
    rounds to nearest, none is nearly a step away, but for values beyond the ends of their grid."""
    near, size = 0, 0
    for rows in strips(matrix):
        part = matrix.rows(rows)
        room = _HALF_A_STEP + _SLACK * np.abs(part.numbers())
        near += int((_distance(part, wanted_RA[rows].float().numpy()) <= room).sum())
        size += part.codes_RA.size
    return _by_strips(partial(_within, nearest=near >= _MOSTLY * size), matrix, wanted_RA)


def _by_strips(rule: _RuleOfRows, matrix: CodedMatrix, wanted_RA: torch.Tensor) -> Fault | None:
    """What a rule of rows finds in all of a matrix: what is wrong first, and how often; and where anything is."""
    found: Fault | None = None
    wrong_RG = np.zeros(matrix.scales_RG.shape, np.bool_)
    for rows in strips(matrix):
        fault = rule(matrix.rows(rows), wanted_RA[rows].float().numpy())
        if fault is None:
            continue
        wrong_RG[rows] = fault.wrong_RG
        if found is None:
            found = replace(fault, row=fault.row + rows.start)
        elif fault.what == found.what:
            found = replace(found, count=found.count + fault.count)
    if found is None:
        return None
    return replace(found, size=wrong_RG.size if found.unit == "blocks" else matrix.codes_RA.size, wrong_RG=wrong_RG)


def _exact(matrix: CodedMatrix, wanted: Floats) -> Fault | None:
    other = ~(np.abs(matrix.values() - wanted) <= matrix.room * np.abs(wanted))
    said = "has other values than the checkpoint's codes stand for in"
    return _of_values(other, matrix, wanted, said) if other.any() else None


def _nearest(matrix: CodedMatrix, wanted: Floats, beside: bool) -> Fault | None:
    lost = ~np.isfinite(matrix.scales_RG)
    if lost.any():
        return _of_blocks(lost, matrix, "has scales that are not finite in", "")
    far = _distance(matrix, wanted) > _HALF_A_STEP + beside * _BESIDE + matrix.room * np.abs(matrix.numbers())
    largest: Floats = np.maximum.reduceat(np.abs(wanted), matrix.starts, axis=1)
    poor = _out_of_reach(matrix, largest) if beside else _poor(matrix, wanted, largest)
    if far.any():
        # Blocks whose grid does not fit are as wrong, though another code is said first.
        nearest = "the nearest or one beside it" if beside else "the nearest"
        fault = _of_values(far, matrix, wanted, f"has another code than {nearest} in")
        return replace(fault, wrong_RG=fault.wrong_RG | poor)
    if not poor.any():
        return None
    row, block = (int(i) for i in np.argwhere(poor)[0])
    return _of_blocks(poor, matrix, "has scales that do not fit in", f", for values up to {largest[row, block]:.6g}")


def _poor(matrix: CodedMatrix, wanted: Floats, largest: Floats) -> Mask:
    """The blocks that lose more than a scale costs that fits."""
    starts, high = matrix.starts, matrix.ends[1]
    counts = np.diff(np.append(starts, wanted.shape[1]))
    left = np.add.reduceat(np.square(matrix.values() - wanted, dtype=np.float64), starts, axis=1)
    plain = np.repeat(largest / high, counts, axis=1)
    rounded = np.divide(wanted, plain, out=np.zeros_like(wanted), where=plain != 0).round() * plain
    times = _POOR if matrix.zeros_RG is None else 2 * _POOR  # rounding a zero point puts both ends of a block off
    allowed = times * np.add.reduceat(np.square(rounded - wanted, dtype=np.float64), starts, axis=1)
    allowed += counts * np.square(np.maximum(largest * _DIGITS, -matrix.ends[0] * _TINY), dtype=np.float64)
    poor: Mask = left > allowed
    return poor


def _out_of_reach(matrix: CodedMatrix, largest: Floats) -> Mask:
    """The blocks whose largest value is too few steps away from 0, or too many."""
    size = np.abs(matrix.scales_RG)
    least, most = (largest / reach for reach in reversed(_REACH))
    out: Mask = (size < least * (1 - 2 * _DIGITS) - 4 * _TINY) | (size > most * (1 + 2 * _DIGITS) + 4 * _TINY)
    return out


def _within(matrix: CodedMatrix, wanted: Floats, nearest: bool) -> Fault | None:
    steps = np.abs(matrix.spread(matrix.scales_RG))
    room = _SLACK * np.abs(matrix.numbers())
    far = _distance(matrix, wanted) > (_NEARLY if nearest else 1 + room)
    far |= ~(np.abs(matrix.values() - wanted) <= steps * (_BEYOND + room))
    return _of_values(far, matrix, wanted, "differs by more than a step of its grid in") if far.any() else None


def _distance(matrix: CodedMatrix, wanted: Floats) -> Floats:
    """How far each code is from the one that fits best, in steps."""
    scales, numbers = matrix.spread(matrix.scales_RG), matrix.numbers()
    steps = np.divide(wanted, scales, out=np.zeros_like(wanted), where=scales != 0)
    low, high = matrix.ends
    zeros = 0 if matrix.zeros_RG is None else matrix.spread(matrix.zeros_RG)
    distance: Floats = np.abs(np.clip(steps, low - zeros, high - zeros) - numbers)
    return distance


def _of_values(wrong: Mask, matrix: CodedMatrix, wanted: Floats, what: str) -> Fault:
    row, at = (int(i) for i in np.argwhere(wrong)[0])
    block = at // matrix.block
    zero = "" if matrix.zeros_RG is None else f" and zero {matrix.zeros_RG[row, block]:g}"
    shows = (
        f"code {int(matrix.codes_RA[row, at])} of scale {matrix.scales_RG[row, block]:.6g}{zero}, and the "
        f"checkpoint's {wanted[row, at]:.6g}"
    )
    blocks = np.logical_or.reduceat(wrong, matrix.starts, axis=1)
    return Fault(what, "values", int(wrong.sum()), wrong.size, row, at, shows, blocks)


def _of_blocks(wrong: Mask, matrix: CodedMatrix, what: str, more: str) -> Fault:
    row, block = (int(i) for i in np.argwhere(wrong)[0])
    shows = f"of scale {matrix.scales_RG[row, block]:.6g}{more}"
    return Fault(what, "blocks", int(wrong.sum()), wrong.size, row, block * matrix.block, shows, wrong)
