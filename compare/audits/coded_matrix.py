"""A matrix in codes as an audit looks at it, whatever file it comes from: blocks lie along its last axis.

This file and those that use it share no code with the quantiser, the writers and the readers of codes, so that a defect
there cannot pass both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from blockexport.models.checkpoints.checkpoint import Checkpoint

STRIP = 1 << 22  # values looked at a time

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CodedMatrix:
    """Codes, and what they stand for. R rows of A codes each, in G blocks.

    Attributes:
        codes_RA: int8.
        scales_RG: one for each block.
        zeros_RG: the code that stands for 0 in each block; None: 0 does.
        block: codes of a row that share a scale; the last block of a row may be shorter.
        ends: the smallest code that the type holds, and the largest.
        by_inputs: a row is what one input of the layer contributes, where it usually is what one output takes.
        row_by_row: codes that follow each other in the file follow each other in a row; else in a column.
        order_K: the input of the layer that is at each place along the inputs; None: its own.
        room: how far, as a share of it, a scale may be from the one that the codes were chosen with.
    """

    codes_RA: npt.NDArray[np.int8]
    scales_RG: Floats
    zeros_RG: Floats | None
    block: int
    ends: tuple[int, int]
    by_inputs: bool = False
    row_by_row: bool = True
    order_K: npt.NDArray[np.int64] | None = None
    room: float = 0.0

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Where in a row each block begins."""
        return np.arange(0, self.codes_RA.shape[1], self.block)

    def rows(self, rows: slice) -> CodedMatrix:
        """Some of its rows."""
        zeros = None if self.zeros_RG is None else self.zeros_RG[rows]
        return replace(self, codes_RA=self.codes_RA[rows], scales_RG=self.scales_RG[rows], zeros_RG=zeros)

    def spread(self, values_RG: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What each block has, at each of its codes."""
        return np.repeat(values_RG, self.block, axis=1)[:, : self.codes_RA.shape[1]]

    def numbers(self) -> Floats:
        """Each code less its block's zero."""
        codes = self.codes_RA.astype(np.float32)
        return codes if self.zeros_RG is None else codes - self.spread(self.zeros_RG)

    def values(self) -> Floats:
        """What the codes stand for, [R, A]."""
        values: Floats = self.numbers() * self.spread(self.scales_RG)
        return values

    def dequantised(self) -> torch.Tensor:
        """The same as the layer has it: [N, K], outputs first."""
        values = self.values()
        values = values.T if self.by_inputs else values
        if self.order_K is not None:
            values = values[:, np.argsort(self.order_K)]
        return torch.from_numpy(np.ascontiguousarray(values))

    def turned(self, weight_NK: torch.Tensor) -> torch.Tensor:
        """A weight [N, K] as this matrix lies, [R, A]."""
        if self.order_K is not None:
            weight_NK = weight_NK[:, torch.from_numpy(self.order_K.astype(np.int64))]
        return weight_NK.T if self.by_inputs else weight_NK

    def weight_of(self, wanted_RA: torch.Tensor) -> torch.Tensor:
        """What lies as this matrix does as a weight [N, K]: `turned` undone."""
        weight_NK = wanted_RA.T if self.by_inputs else wanted_RA
        return weight_NK if self.order_K is None else weight_NK[:, torch.from_numpy(np.argsort(self.order_K))]

    def place(self, row: int, at: int) -> list[int]:
        """Where in the weight [N, K] a code of it is."""
        output, at = (at, row) if self.by_inputs else (row, at)
        return [output, at if self.order_K is None else int(self.order_K[at])]


@dataclass(frozen=True)
class Fault:
    """What is wrong with a matrix, or with some rows of one.

    Attributes:
        what: that something is, up to a number.
        unit: what is counted, `values` or `blocks`.
        count: how many are wrong.
        size: of how many.
        row: of the first.
        at: where in its row that is.
        shows: what is there.
        wrong_RG: the blocks in which something is wrong.
    """

    what: str
    unit: str
    count: int
    size: int
    row: int
    at: int
    shows: str
    wrong_RG: Mask

    def clause(self, matrix: CodedMatrix) -> str:
        """In words, of the whole `matrix`."""
        place = matrix.place(self.row, self.at)
        return f"{self.what} {self.count:,} of {self.size:,} {self.unit}: {place} is {self.shows}"


Rule = Callable[[CodedMatrix, torch.Tensor], Fault | None]
"""Holds a matrix against the values [R, A] that it should stand for."""


class CodedCheckpoint(Checkpoint):
    """A source's tensors, those that a file has quantised as the file has them.

    Attributes:
        original: the source.
        in_codes: the names of the tensors that the file has quantised.
    """

    original: Checkpoint

    @property
    @abstractmethod
    def in_codes(self) -> Mapping[str, object]:
        """Each tensor that the file has in codes, by name."""

    @abstractmethod
    def coded(self, name: str) -> CodedMatrix:
        """One of these, whose shape is the source's."""

    @abstractmethod
    def blocks_of(self, name: str) -> tuple[int, torch.Tensor | None]:
        """How many inputs of one of these share a scale, and the input at each place, int64 [K]; None: its own."""

    @abstractmethod
    def rule(self, name: str) -> Rule:
        """What is asked of it."""

    def read(self, name: str) -> torch.Tensor:
        """See `Checkpoint.read`."""
        return self.coded(name).dequantised() if name in self.in_codes else self.original.read(name)


def strips(matrix: CodedMatrix) -> Iterator[slice]:
    """Rows of a matrix, so many at a time that a few copies of them in floating point do not matter."""
    count, width = matrix.codes_RA.shape
    step = max(1, STRIP // max(width, 1))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
