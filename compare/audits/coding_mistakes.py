"""Mistakes that files make with matrices in codes: which of them, undone, gives the matrix that should be there?

A mistake is named when undoing it leaves nothing wrong, by the very rule that the matrix breaks. Where it has lost
something (the last block has no next one to get its scale back from), the blocks concerned are left out, as long as
at least a quarter of those that were wrong are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from blockexport.compare.audits.coded_matrix import CodedMatrix, Fault, Rule
from blockexport.compare.audits.undo_codes import clipped_early, nibbles_swapped, sign_lost, zero_points_wrong
from blockexport.compare.audits.undo_places import groups_ignored, inputs_moved, outputs_moved
from blockexport.compare.audits.undo_scales import (
    along_the_other_axis,
    of_a_neighbour,
    off_by_a_factor,
    table_turned_over,
)
from blockexport.compare.audits.undone import Undo, Undone


@dataclass(frozen=True)
class CodingMistake:
    """One mistake.

    Attributes:
        name: short and stable, for programs.
        title: a few words, for lists.
        cause: for people, a sentence without its full stop.
        undo: gives what may have been meant.
    """

    name: str
    title: str
    cause: str
    undo: Undo


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


MISTAKES: tuple[CodingMistake, ...] = (
    CodingMistake(
        "nibbles_swapped", "nibbles swapped", "the two codes in each byte have changed places", nibbles_swapped
    ),
    CodingMistake(
        "codes_off_by_half",
        "codes off by half their range",
        "codes are read with another sign than written: off",
        sign_lost,
    ),
    CodingMistake(
        "block_axis",
        "blocks along the wrong axis",
        "scales are those of blocks along the other axis, of outputs where it should be inputs",
        along_the_other_axis,
    ),
    CodingMistake(
        "scales_turned",
        "scales turned over",
        "the table of scales is read by rows where it lies by columns",
        table_turned_over,
    ),
    CodingMistake(
        "scale_factor", "scale off by a factor", "a scale is not the one its codes were made for", off_by_a_factor
    ),
    CodingMistake(
        "neighbour_scale", "scale of a neighbour", "blocks have the scale that belongs to a neighbour", of_a_neighbour
    ),
    CodingMistake("codes_clipped", "codes clipped early", "codes are clipped", clipped_early),
    CodingMistake(
        "order_dropped",
        "order of the inputs dropped",
        "inputs are in another order, as where that of quantising (act-order) is not put back",
        inputs_moved,
    ),
    CodingMistake("outputs_moved", "outputs in another order", "outputs have each other's codes", outputs_moved),
    CodingMistake(
        "groups_dropped",
        "groups of the inputs dropped",
        "which block's scales an input has (act-order, g_idx) is ignored",
        groups_ignored,
    ),
    CodingMistake("zero_point_ignored", "zero point ignored", "codes were made with zero points", zero_points_wrong),
)
"""All that are known, in the order in which they are tried: what has fewer ways to be true goes first."""
