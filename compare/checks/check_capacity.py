"""The end of the cache: its last slot can be written, and nothing goes past it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from blockexport.compare.core.check import Check, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.figures import Figures
from blockexport.compare.core.immovable import same_bits
from blockexport.compare.core.slots import Mark, cache_tensors, mark_slots, unmarked
from blockexport.models.errors import UsageError
from blockexport.models.wording import plural
from blockexport.runtime.decoder import Decoder

MARK = Mark(1.0, 1.0)  # of the size of keys and values: here the call sees the marked slots


@dataclass(frozen=True)
class CapacityFigures(Figures):
    """How many slots the cache has."""

    slots: int


@partial(
    Check,
    "capacity",
    Kind.BEHAVIOUR,
    inapplicable=lambda context: context.no_slots,
    unlocated="this check is about the end of the cache, where no output can be held against eager's",
)
def capacity(context: CheckContext) -> Outcome:
    """A call into slot M - 1 writes that slot and no other. One at M, and two at M - 1, are refused before they run:
    not a slot of the cache changes, whereas TensorRT, say, drops such a write without a word.

    What is in the last slot is judged by `last-slot`; here it is only told from what was there before.
    """
    decoder, last = context.decoder, context.decoder.max_sequence_length - 1
    ids_S = (context.ids_S[:1] + torch.arange(3)) % context.config.vocab_size  # other tokens past the end than in it
    inputs = context.inputs(decoder, ids_S[None])
    decoder.reset(1)
    mark_slots(decoder, MARK)
    complaints = _write_last(decoder, inputs[:, :1], last) or [
        said
        for start, count in ((last + 1, 1), (last, 2))
        for said in _write_past(decoder, inputs[:, 1 : 1 + count], start, last)
    ]
    message = f"slot {last} is written, one past it refused with the cache unchanged"
    return Outcome(message, sum(1 for _ in cache_tensors(decoder)), complaints, figures=CapacityFigures(last + 1))


def _write_last(decoder: Decoder, inputs: torch.Tensor, last: int) -> list[str]:
    try:
        decoder.forward(inputs, torch.tensor([[last]]))
    except UsageError as error:
        return [f"the last slot, {last}, is refused: {error}"]
    written = unmarked(decoder, MARK, range(last, last + 1))
    missed = [name for name, _ in cache_tensors(decoder) if name not in written]
    touched = unmarked(decoder, MARK, range(last))
    complaints = [f"the last slot, {last}, of the {missed[0]} is not written"] if missed else []
    return complaints + ([f"writing slot {last} changes other slots of the {touched[0]}"] if touched else [])


def _write_past(decoder: Decoder, inputs: torch.Tensor, start: int, last: int) -> list[str]:
    before, count = _last_slots(decoder), inputs.shape[1]
    what = f"{plural(count, 'token')} at position {start} of {last + 1} slots"
    try:
        decoder.forward(inputs, torch.arange(start, start + count)[None])
    except UsageError:
        fate = "refused"
    else:
        fate = "not refused"
    rewritten = [
        name
        for (name, _), old, new in zip(cache_tensors(decoder), before, _last_slots(decoder), strict=True)
        if not same_bits(old, new)
    ]
    changed = unmarked(decoder, MARK, range(last)) + rewritten
    if changed:
        return [f"{what}: {fate}, and slots of the {changed[0]} are overwritten"]
    return [] if fate == "refused" else [f"{what}: {fate}, and nothing is written"]


def _last_slots(decoder: Decoder) -> list[torch.Tensor]:
    return [tensor[:, :, -1].cpu().clone() for _, tensor in cache_tensors(decoder)]
