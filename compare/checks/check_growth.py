"""A cache that grows while it is filled, as programs have it that pay for their context only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from blockexport.compare.core.check import Check, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.immovable import same_bits
from blockexport.compare.core.judge_positions import judge_stretch
from blockexport.compare.core.position_plan import stepped
from blockexport.compare.core.slots import cache_tensors
from blockexport.models.wording import plural
from blockexport.runtime.decoder import Decoder

ROWS = 3
BOUNDARIES = 3  # that the walk crosses at least


def _does_not_grow(context: CheckContext) -> str | None:
    if context.growing is None:
        return "all slots are there from the start"
    return None if len(_boundaries(context)) >= BOUNDARIES else "the cache is too small to double three times"


def _boundaries(context: CheckContext) -> list[int]:
    """The numbers of slots at which it grows while prefill and decode fill it; the first is what it begins with."""
    end = context.plan.decode_positions.stop - 2  # a token or two come after a boundary
    first = max(1, end >> BOUNDARIES)
    return [slots for slots in (first << i for i in range(end.bit_length())) if slots <= end]


@partial(
    Check,
    "growth",
    Kind.NUMERICAL,
    inapplicable=_does_not_grow,
    unlocated="other checks run the same calls with all slots from the start: this one is about how slots are added",
)
def growth(context: CheckContext) -> Outcome:
    """The judged sequence with a cache that doubles whenever it is full, in single steps and in chunks across the
    boundary; and random numbers in every slot of several rows, which have to be there, to the bit, after each growth.
    """
    assert context.growing is not None
    boundaries = _boundaries(context)
    decoder = context.growing(boundaries[0])
    calls = _calls(boundaries)
    artifact = context.walk(decoder, calls, range(boundaries[-1] + 2), "artifact, growing")
    seen = artifact.errors.positions_P.tolist()
    at = f"{', '.join(map(str, boundaries[:-1]))} and {boundaries[-1]}"
    what = f"a cache that grows at {at} slots ({plural(len(seen), 'position')})"
    found = judge_stretch(context, what, artifact.errors, context.floors(context.cached_errors(calls, seen)))
    moved = _moved(decoder, boundaries)
    return replace(found, complaints=[moved]) if moved else found  # the reason of whatever else is wrong


def _calls(boundaries: Sequence[int]) -> list[range]:
    """Up to each boundary a chunk; across it single steps and a chunk in turn."""
    steps = {p for i, slots in enumerate(boundaries) for p in ((slots - 1, slots) if i % 2 == 0 else (slots + 1,))}
    return stepped([], sorted(steps))


@torch.inference_mode()
def _moved(decoder: Decoder, boundaries: Sequence[int]) -> str:
    """What growing did to the slots that there were, and to those that it added; nothing where it was right."""
    random = torch.Generator().manual_seed(0)
    decoder.reset(ROWS)
    for slots in boundaries:
        decoder.make_room(slots)
        for _, tensor in cache_tensors(decoder, held=True):
            tensor.copy_(torch.randn(tensor.shape, generator=random))
        before = {name: tensor.clone() for name, tensor in cache_tensors(decoder, held=True)}
        decoder.make_room(slots + 1)
        for name, after_BKMH in cache_tensors(decoder, held=True):
            old_BKMH, held = before[name], before[name].shape[2]
            if after_BKMH.shape[2] <= held:
                return f"a cache of {held} slots has {after_BKMH.shape[2]} when it should have grown"
            wrong_BKM = (after_BKMH[:, :, :held] != old_BKMH).any(-1)
            if not same_bits(after_BKMH[:, :, :held], old_BKMH):
                row, head, slot = wrong_BKM.nonzero()[0].tolist()
                many = f"{int(wrong_BKM.sum())} of {wrong_BKM.numel()}"
                return (
                    f"growing from {held} slots changes what is in the {name}: first row {row}, head {head}, slot "
                    f"{slot}, and {many} vectors in all"
                )
            if after_BKMH[:, :, held:].count_nonzero():
                return f"growing from {held} slots adds slots to the {name} that do not hold zeros"
    return ""
