"""Embeddings as the judge computes them: from the states of a sequence, pooled as the calls that are judged have it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from blockexport.models.block.pooling import pooled
from blockexport.models.interface import Ends, Pooling


def embeddings_at(states_SD: torch.Tensor, positions: Sequence[int], starts: Sequence[int], ends: Ends) -> torch.Tensor:
    """The embeddings [P, D] of calls that end at `positions`, each of its tokens from one of `starts` on.

    Args:
        states_SD: after the final norm, of a sequence from its first token on.
        positions: of the last token of each call.
        starts: of the first token that counts.
        ends: how they are pooled.
    """
    assert ends.pooling is not None
    if list(starts) == list(positions):
        alone_P1D = states_SD[list(positions)][:, None]
        columns_P = torch.zeros(len(alone_P1D), dtype=torch.int64)
        return pooled(alone_P1D, columns_P, ends.pooling, normalize=ends.normalizes)
    spans = zip(positions, starts, strict=True)
    return torch.cat([embedding(states_SD[start : position + 1], ends) for position, start in spans])


def embedding(states_SD: torch.Tensor, ends: Ends) -> torch.Tensor:
    """The embedding [1, D] of one call, whose states these are."""
    assert ends.pooling is not None
    return pooled(states_SD[None], torch.tensor([len(states_SD) - 1]), ends.pooling, normalize=ends.normalizes)


def starts_of(ends: Ends, given: Sequence[int], begun: int) -> list[int]:
    """The first token that each output of a call is made of.

    Args:
        ends: of what gives the outputs.
        given: the positions of the call's outputs.
        begun: where the call begins.
    """
    return [begun] if ends.pooling is Pooling.MEAN else list(given)
