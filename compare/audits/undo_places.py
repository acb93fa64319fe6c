"""Mistakes with the places of inputs and outputs in a matrix, undone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from blockexport.compare.audits.coded_matrix import CodedMatrix, Fault
from blockexport.compare.audits.undone import Undone

_ROWS = 512  # outputs of a matrix are enough to tell which of its inputs is which, and the other way round
_HELD = 1 << 10  # at a time against all
_MOST = 1 << 15  # are held against each other: the tokens of a large vocabulary would take minutes


def inputs_moved(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    """Each input's column is the one of the weight that it is most like, if that makes every one somebody's."""
    weight_NK = matrix.weight_of(wanted_RA)
    width = weight_NK.shape[1]
    if width > _MOST:
        return
    own = torch.arange(width) if matrix.order_K is None else torch.from_numpy(matrix.order_K.astype(np.int64))
    part = matrix if matrix.by_inputs else matrix.rows(slice(_ROWS))
    found_NK = replace(part, order_K=None).dequantised()[:_ROWS]
    order = _likest(found_NK.T, weight_NK[:_ROWS].float().T)
    moved = int((order != own).sum())
    if moved and len(order.unique()) == width:
        wanted_NK = weight_NK[:, order]
        detail = f": {moved:,} of {width:,} inputs are in other places"
        yield Undone(matrix, wanted_NK.T if matrix.by_inputs else wanted_NK, detail=detail)


def outputs_moved(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
    """The codes of each output are those of the one that they are most like; its scales are its own, or moved too."""
    if matrix.by_inputs or len(matrix.codes_RA) > _MOST:
        return
    inputs = slice(_ROWS)
    # By their sizes: the sign is half in the scales, which may be another output's.
    sizes = (torch.from_numpy(matrix.numbers()[:, inputs]).abs(), wanted_RA[:, inputs].float().abs())
    order = _likest(*(values - values.mean(1, keepdim=True) for values in sizes))
    moved = int((order != torch.arange(len(order))).sum())
    if not moved or len(order.unique()) != len(order):
        return
    back = order.argsort().numpy()
    detail = f": {moved:,} of {len(order):,} outputs are in other places"
    zeros = matrix.zeros_RG
    codes = replace(matrix, codes_RA=matrix.codes_RA[back])
    yield Undone(codes, wanted_RA, detail=detail)
    yield Undone(replace(codes, zeros_RG=None if zeros is None else zeros[back]), wanted_RA, detail=detail)
    yield Undone(matrix, wanted_RA[order], detail=detail)


def _likest(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """For each row of the one the row of the other that it is most like."""
    found, wanted = (torch.nn.functional.normalize(values.nan_to_num(), dim=1) for values in (found, wanted))
    return torch.cat([(rows @ wanted.T).argmax(1) for rows in found.split(_HELD)])


def groups_ignored(matrix: CodedMatrix, wanted_RA: torch.Tensor, fault: Fault) -> Iterator[Undone]:
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
