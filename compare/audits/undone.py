"""A matrix in codes with a mistake undone: what is tried by whoever looks for the cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from blockexport.compare.audits.coded_matrix import CodedMatrix, Fault, Mask


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


Undo = Callable[[CodedMatrix, torch.Tensor, Fault], Iterator[Undone]]
"""Gives what may have been meant, likeliest first, where there is anything; called with the matrix, what it should
stand for [R, A], and what is wrong with it."""
