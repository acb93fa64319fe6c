"""Whose cache does each layer of an artifact read?

That shows from outside, in any backend and whatever its graph is called: a few tokens, one more, and what the caches
hold before and after it. Old entries are carried over as they are, so it can be seen where those of each cache came
from; and who wrote a cache, what eager makes of the same tokens tells. An update in place may overwrite or clear a
cache before another layer reads it: then a layer reads what is there by that time, and that is what is seen.
"""

from __future__ import annotations

import torch

from blockexport.compare.core.cached_path import CachedPath
from blockexport.compare.core.defect import CACHE_KINDS, CachePlace, Defect
from blockexport.compare.core.evidence import fed
from blockexport.compare.explain.defects_position import misread
from blockexport.compare.explain.value_distance import relative_error
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.errors import ArtifactError, NotJudgedError, UsageError
from blockexport.runtime.decoder import Decoder

# A graph that takes single tokens has handed its caches on within a prompt of two, so that nobody's are in them.
PROMPTS = (2, 1)
WRITTEN_BY = 0.1  # of its size, at which an entry still is eager's: rounding is far less, another layer's far more

Caches = dict[CachePlace, torch.Tensor]


class _UnknownError(Exception):
    """A cache holds what no other held before, or what eager gives no layer."""


def misread_caches(decoder: Decoder, checkpoint: Checkpoint, ids_S: torch.Tensor) -> Defect | None:
    """The defect of layers that read each other's caches, or empty ones, where there is one.

    None where every layer reads its own, or where it cannot be told because the caches are wrong in another way.

    Args:
        decoder: the artifact; it is reset.
        checkpoint: the source.
        ids_S: int64, some tokens.
    """
    for prompt in PROMPTS:
        if prompt >= min(decoder.max_sequence_length, len(ids_S)):
            break
        try:
            before, after = _around_a_step(decoder, checkpoint, ids_S, prompt)
            sources = {place: _source(place, held, before) for place, held in after.items()}
            if all(source == place for place, source in sources.items()):
                return None
            return _defect(sources, _writers(checkpoint, ids_S[:prompt], before))
        except (ArtifactError, NotJudgedError, UsageError, _UnknownError):
            continue
    return None


def _defect(sources: dict[CachePlace, CachePlace | None], writers: dict[CachePlace, CachePlace]) -> Defect:
    """What layers read, of what caches held before and of who writes each."""
    reads = {writers[place]: None if source is None else writers[source] for place, source in sources.items()}
    if len(reads) < len(sources):
        raise _UnknownError
    others = {place: source for place, source in reads.items() if source != place}
    own = all(place == writer for place, writer in writers.items())
    return misread(others, lost=own and set(others.values()) == {None})


def _around_a_step(decoder: Decoder, checkpoint: Checkpoint, ids_S: torch.Tensor, prompt: int) -> tuple[Caches, Caches]:
    """The caches' entries of a prompt, before and after one more token."""
    inputs = fed(checkpoint, decoder.interface, ids_S[None])
    decoder.reset(1)
    decoder.prefill(inputs[:, :prompt])
    before = _held(decoder, prompt)
    decoder.prefill(inputs[:, prompt : prompt + 1])
    return before, _held(decoder, prompt)


def _held(decoder: Decoder, slots: int) -> Caches:
    layers = range(decoder.config.num_hidden_layers)
    return {
        (layer, kind): cache_BKMH[:, :, :slots].cpu().clone()
        for layer in layers
        for kind, cache_BKMH in zip(CACHE_KINDS, decoder.cache(layer), strict=True)
    }


def _source(place: CachePlace, held: torch.Tensor, before: Caches) -> CachePlace | None:
    """The cache that held before what one holds now, itself if it may be; None where it is empty now."""
    if torch.equal(held, before[place]):
        return place
    if not held.any():
        return None
    found = next((other for other in before if torch.equal(held, before[other])), None)
    if found is None:
        raise _UnknownError
    return found


def _writers(checkpoint: Checkpoint, ids_S: torch.Tensor, before: Caches) -> dict[CachePlace, CachePlace]:
    """Which cache of eager's is what each cache holds of the prompt."""
    path = CachedPath(checkpoint, torch.float32, ids_S, [range(len(ids_S))], len(ids_S))
    eager = {
        (layer, kind): cache
        for layer, past in enumerate(path.caches())
        for kind, cache in zip(CACHE_KINDS, past, strict=True)
    }

    def writer(held: torch.Tensor) -> CachePlace:
        errors = {place: relative_error(held, wanted) for place, wanted in eager.items()}
        nearest = min(errors, key=lambda place: errors[place])
        if errors[nearest] > WRITTEN_BY:
            raise _UnknownError
        return nearest

    return {place: writer(held) for place, held in before.items()}
