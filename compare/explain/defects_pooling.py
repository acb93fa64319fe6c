"""Defects of what becomes of the states of a call where an embedding comes out."""

from __future__ import annotations

from collections.abc import Callable

import torch

from blockexport.compare.core.defect import Defect
from blockexport.compare.core.embeddings import embedding
from blockexport.models.interface import Ends, Pooling

Pool = Callable[[torch.Tensor, Ends], torch.Tensor]


def pooling_defects(ends: Ends) -> list[Defect]:
    """Other tokens than the ones that count, another pooling, or another length; none where no embedding comes out."""
    if ends.pooling is None:
        return []
    found = [
        Defect("pool_first", "the embedding is the first token's state", pool=_of(lambda x_SD: x_SD[:1])),
        Defect("normalize_extra", "the embedding is normalised, and should not be", pool=_as(normalize=True))
        if not ends.normalizes
        else Defect("normalize_missing", "the embedding is not normalised", pool=_as(normalize=False)),
    ]
    if ends.pooling is Pooling.LAST:
        before = "the embedding is of the token before the last one"
        return [
            *found,
            Defect("pool_before_last", before, pool=_of(lambda x_SD: x_SD[-2:-1] if len(x_SD) > 1 else x_SD)),
            Defect("pool_mean", "the embedding is the mean of all tokens", pool=_as(Pooling.MEAN)),
        ]
    less = "the mean leaves out the {} token"
    return [
        *found,
        Defect("pool_last", "the embedding is of the last token, and no mean", pool=_as(Pooling.LAST)),
        Defect("mean_without_last", less.format("last"), pool=_of(lambda x_SD: x_SD[:-1] if len(x_SD) > 1 else x_SD)),
        Defect("mean_without_first", less.format("first"), pool=_of(lambda x_SD: x_SD[1:] if len(x_SD) > 1 else x_SD)),
        *([] if ends.normalizes else [Defect("mean_summed", "tokens are summed up, and not divided by", pool=_summed)]),
    ]


def _of(kept: Callable[[torch.Tensor], torch.Tensor]) -> Pool:
    """Of some tokens of the call alone."""
    return lambda states_SD, ends: embedding(kept(states_SD), ends)


def _as(pooling: Pooling | None = None, normalize: bool | None = None) -> Pool:
    """With another pooling, or with another length."""

    def pool(states_SD: torch.Tensor, ends: Ends) -> torch.Tensor:
        assert ends.pooling is not None
        length = ends.normalizes if normalize is None else normalize
        return embedding(states_SD, Ends.of_embedding(pooling or ends.pooling, normalize=length))

    return pool


def _summed(states_SD: torch.Tensor, ends: Ends) -> torch.Tensor:
    return embedding(states_SD, ends) * len(states_SD)
