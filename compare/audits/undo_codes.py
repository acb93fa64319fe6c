"""Mistakes with the codes of a matrix, undone: how they lie in bytes, their sign, their end, and what stands for 0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from blockexport.compare.audits.coded_matrix import CodedMatrix, Fault, strips
from blockexport.compare.audits.undone import Undone


def nibbles_swapped(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    """The two codes of each byte change places: as they lie in the file, or as they lay in a checkpoint, along the
    inputs."""
    if matrix.ends[1] > 7:
        return
    codes = matrix.codes_RA if matrix.row_by_row else matrix.codes_RA.T
    flat = codes.reshape(-1).copy()
    pairs = flat[: flat.size // 2 * 2].reshape(-1, 2)
    pairs[:] = pairs[:, ::-1].copy()
    swapped = flat.reshape(codes.shape)
    yield Undone(replace(matrix, codes_RA=swapped if matrix.row_by_row else swapped.T), wanted_RA)
    order = np.arange(matrix.codes_RA.shape[not matrix.by_inputs]) if matrix.order_K is None else matrix.order_K
    if len(order) % 2 == 0:
        beside = np.argsort(order)[order ^ 1]
        yield Undone(replace(matrix, codes_RA=matrix.codes_RA.take(beside, int(not matrix.by_inputs))), wanted_RA)


def sign_lost(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    half = -matrix.ends[0]
    shifted = matrix.codes_RA.astype(np.int16)
    shifted += np.where(shifted < 0, half, -half).astype(np.int16)
    yield Undone(replace(matrix, codes_RA=shifted.astype(np.int8)), wanted_RA, detail=f" by {half}")


def clipped_early(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
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


def zero_points_wrong(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
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
        detail = " other than the file's" if there.any() else ", which are ignored"
        yield Undone(replace(matrix, zeros_RG=np.where(fault.wrong_RG, zeros_RG, there)), wanted_RA, detail=detail)
