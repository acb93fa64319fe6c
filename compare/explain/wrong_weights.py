"""Which weights behind the first difference in another tool's graph are not the checkpoint's, and what they are?

A tool may lay out its weights as it likes, so they are held against the checkpoint's where their use shows what they
should be: behind a value that differs while those before it do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from blockexport.compare.audits.weight_difference import describe_difference, same_values
from blockexport.compare.explain.location import Search
from blockexport.compare.explain.used_weights import UsedWeight, Uses
from blockexport.models.checkpoints.checkpoint import Checkpoint

DESCRIBED = 3  # tensors


def wrong_weights(search: Search, uses: Uses, checkpoint: Checkpoint) -> dict[str, str]:
    """A clause for each tensor that is not the checkpoint's, and what the file calls it, in the order of the forward
    pass: at the first difference, and at the first in each other layer that differs by itself."""
    found: dict[str, str] = {}
    for layer, site in _places(search).items():
        for clause, name in _wrong_at(uses, layer, site, checkpoint):
            found.setdefault(clause, name)
        if len(found) >= DESCRIBED:
            break
    return dict(list(found.items())[:DESCRIBED])


def _places(search: Search) -> dict[int | None, str]:
    """Of each layer that differs in the call of the first difference, the first site that does."""
    first = search.location
    if first is None:
        return {}
    places: dict[int | None, str] = {first.layer: first.site}
    for row in search.rows:
        if row.outside and row.call.start == first.call:
            places.setdefault(row.layer, row.site)
    return places


def _wrong_at(uses: Uses, layer: int | None, site: str, checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Those behind one site; what may be more than one tensor of the checkpoint is left alone."""
    shapes = {name: entry.shape for name, entry in checkpoint.entries.items()}
    own, hidden = ([name for name in names if name in shapes] for names in uses.tensors(layer, site))
    parts = [part for weight in uses.behind(layer, site) for part in _parts(weight, own, hidden, shapes)]
    held = [[name for name in may_be if same_values(part.values, checkpoint, name)] for part, may_be in parts]
    right = {name for same in held for name in same}
    for (part, may_be), same in zip(parts, held, strict=True):
        left = [name for name in may_be if name not in right]
        if not same and len(left) == 1:
            yield describe_difference(part.values, checkpoint, left[0], shapes), part.name


def _parts(
    weight: UsedWeight, own: Sequence[str], hidden: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> list[tuple[UsedWeight, list[str]]]:
    """What a tensor of the file may be: one of a site's own, or else of those behind it, or several of those side by
    side."""
    whole = tuple(weight.values.shape)
    for names in (own, hidden):
        alike = [name for name in names if shapes[name] == whole]
        if alike:
            return [(weight, alike)]
    for kind in ("proj.weight", "proj.bias"):
        side = [name for name in hidden if name.endswith(kind)]
        for run in (side[at:end] for at in range(len(side)) for end in range(at + 2, len(side) + 1)):
            rows = [shapes[name][0] for name in run]
            if all((sum(rows), *shapes[name][1:]) == whole for name in run):
                split = weight.values.split(rows)
                return [(UsedWeight(weight.name, part), [name]) for part, name in zip(split, run, strict=True)]
    return []
