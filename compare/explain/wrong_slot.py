"""Which slot of an artifact's cache is the first to hold something else than eager's?

Outputs may be right in the call that spoils a slot, and wrong only in later ones that read it; some calls give no
outputs at all. What is stored tells the call to look into.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blockexport.compare.core.evidence import Evidence
from blockexport.compare.core.logit_distance import measure
from blockexport.compare.core.noise import floor_of
from blockexport.compare.core.tolerances import MAX_FACTOR
from blockexport.models.checkpoints.checkpoint import Checkpoint
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


def first_wrong_slot(decoder: Decoder, checkpoint: Checkpoint, evidence: Evidence) -> WrongSlot | None:
    """The first slot outside the floor; the floor is eager's own error along the same calls, slot by slot.

    Args:
        decoder: the artifact, after the calls of `evidence`.
        checkpoint: the source, read layer by layer.
        evidence: tokens, calls and precision.
    """
    stop = evidence.calls[-1].stop
    paths = [evidence.path(checkpoint, dtype).caches() for dtype in (torch.float64, evidence.dtype)]
    found: list[WrongSlot] = []
    for layer, (exact, own) in enumerate(zip(*paths, strict=True)):
        for i, kind in enumerate(("keys", "values")):
            given, wanted, noisy = (_rows(past[i], stop) for past in (decoder.cache(layer), exact, own))
            errors = measure(given, wanted, range(stop))
            floor = floor_of([measure(noisy, wanted, range(stop))], evidence.dtype)
            outside = (~(errors.max_P <= MAX_FACTOR.value * floor.max_P)).nonzero()[:, 0].tolist()
            if outside:
                call = next(call for call in evidence.calls if outside[0] in call)
                found.append(WrongSlot(outside[0], layer, kind, call.start, call.stop))
    return min(found, default=None)


def _rows(cache_BKMH: torch.Tensor, stop: int) -> torch.Tensor:
    """The first slots of row 0, [stop, K * H]."""
    return cache_BKMH[0, :, :stop].transpose(0, 1).flatten(1).cpu()
