"""Which slot of an artifact's cache is the first to hold something other than eager's?

Outputs may be right in the call that spoils a slot, and wrong only in later ones that read it; some calls give no
outputs at all. What is stored tells the call to look into.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from blockexport.compare.core.evidence import Evidence
from blockexport.compare.core.logit_distance import Distances, Errors, measure
from blockexport.compare.core.noise import floor_of, judge_by, outside
from blockexport.compare.core.nudge import Looks, Nudges, run_distances
from blockexport.compare.core.slots import first_slots
from blockexport.runtime.decoder import Decoder


@dataclass(frozen=True, order=True)
class WrongSlot:
    """A slot that is further from float64's than eager's own noise.

    Attributes:
        position: of the slot.
        layer: the first one where it is wrong.
        kind: `keys` or `values`.
        start: first position of the call that wrote it.
        stop: one after its last.
    """

    position: int
    layer: int
    kind: str
    start: int
    stop: int

    @property
    def sentence(self) -> str:
        """In words."""
        call = f"positions {self.start} to {self.stop - 1}" if self.stop - self.start > 1 else f"position {self.start}"
        return (
            f"the first wrong slot of the cache is {self.position}, in the {self.kind} of layer {self.layer}, "
            f"left by the call of {call}"
        )


def first_wrong_slot(decoder: Decoder, evidence: Evidence) -> WrongSlot | None:
    """The first slot outside the floor; the floor is eager's own error along the same calls, slot by slot.

    Args:
        decoder: the artifact, after the calls of `evidence`.
        evidence: source, tokens, calls and precision.
    """
    stop, given = evidence.calls[-1].stop, dict[int, list[Errors]]()

    def errors_of_eager(nudges: Nudges) -> list[Sequence[list[Distances]]]:
        """Of each run, those of each layer's keys and values; the artifact's on the way, one layer being held."""
        exact, own = evidence.path(torch.float64), evidence.path(evidence.dtype)
        found = []
        for layer, (wanted, *pasts) in enumerate(zip(exact.caches(), *map(own.caches, nudges), strict=True)):
            truth, slots = [first_slots(cache, stop) for cache in wanted], [range(stop)] * 2
            held = [first_slots(cache, stop) for cache in decoder.cache(layer)]
            given[layer] = list(map(measure, held, truth, slots))
            runs = ([first_slots(cache, stop) for cache in past] for past in pasts)
            found.append(run_distances(nudges, runs, truth, slots))
        return list(zip(*found, strict=True))

    looks, wrong = Looks(errors_of_eager), list[WrongSlot]()
    next(iter(looks))  # and with them `given`
    for layer in range(evidence.checkpoint.config.num_hidden_layers):
        for i, kind in enumerate(("keys", "values")):
            floors = (floor_of([run[layer][i] for run in look], evidence.dtype) for look in looks)
            _, floor = judge_by(given[layer][i], floors, has_top1=False)
            for position in outside(given[layer][i], floor)[:1]:
                call = next(call for call in evidence.calls if position in call)
                wrong.append(WrongSlot(position, layer, kind, call.start, call.stop))
    return min(wrong, default=None)
