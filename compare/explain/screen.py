"""Which known defects would make one layer do what an artifact's layer did? One layer, one call, no logits.

Locate has seen a layer that is wrong by itself: with what entered it, and what left it. A defect that is the cause must
turn the one into the other, so nearly all of the catalogue is excluded by running a single layer, and only what is left
is run through the model. The layer's input is the artifact's own: errors of earlier layers do not disturb.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from blockexport.compare.core.cached_path import CachedPath, Past, defective
from blockexport.compare.core.defect import Defect, LayerBlock
from blockexport.compare.core.evidence import Evidence
from blockexport.compare.core.nudge import Looks, Nudge, Nudges
from blockexport.compare.core.weights_in_parts import make_block
from blockexport.models.progress import counted

Values = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The stream [T, D] that leaves a layer, and its keys and values [1, K, M, H] after the call."""


@dataclass(frozen=True)
class Specimen:
    """A layer of an artifact that is wrong by itself, in one call.

    Attributes:
        layer: which one.
        call: the positions given.
        entering_TD: the stream it was given.
        past: its cache before the call.
        leaving: what it made of them.
    """

    layer: int
    call: range
    entering_TD: torch.Tensor
    past: Past
    leaving: Values

    @property
    def finite(self) -> bool:
        """False where it holds NaN or infinity, which no defect can be held against."""
        return all(bool(value.isfinite().all()) for value in (self.entering_TD, *self.past, *self.leaving))


@dataclass(frozen=True)
class Trace:
    """What a defect does to the specimen's layer: the share of the difference that it leaves, and how far it moves the
    layer's outputs, in units of the layer's noise."""

    defect: Defect
    left: float
    effect: float


def screen(specimen: Specimen, evidence: Evidence, defects: Sequence[Defect]) -> list[Trace]:
    """Try those of `defects` that change the specimen's layer, in float32."""
    checkpoint, layer, path = evidence.checkpoint, specimen.layer, evidence.path(torch.float32)
    blocks = {t: make_block(checkpoint, layer, t) for t in (torch.float64, torch.float32, evidence.dtype)}
    exact, clean = (_run(blocks[t], specimen, path, t) for t in (torch.float64, torch.float32))
    sizes = _sizes(exact, specimen.call)

    def noise_of(nudges: Nudges) -> list[float]:
        own = blocks[evidence.dtype]
        return [_apart(_run(own, specimen, path, evidence.dtype, nudge), exact, sizes) for nudge in nudges]

    noise, found = max(next(iter(Looks(noise_of)))), list[Trace]()
    for defect in counted(defects, "explain: trying defects in one layer, defect", evidence.progress):
        block = defective(blocks[torch.float32], layer, defect, checkpoint)
        if block is blocks[torch.float32]:
            continue
        outputs = _run(block, specimen, path, torch.float32)
        left = share_of(_apart(specimen.leaving, outputs, sizes), _apart(specimen.leaving, clean, sizes))
        if defect.coarse:
            left = min(left, usual_share(specimen.leaving[0], outputs[0], clean[0]))
        effect = _apart(outputs, clean, sizes)
        found.append(Trace(defect, left, effect / noise if noise else float("inf")))
    return found


@torch.no_grad()
def _run(
    block: LayerBlock, specimen: Specimen, path: CachedPath, dtype: torch.dtype, nudge: Nudge | None = None
) -> Values:
    key, value = (past.to(dtype) for past in specimen.past)
    x_TD = specimen.entering_TD.to(dtype)
    x_TD = x_TD if nudge is None else nudge(x_TD)
    out_TD, key, value = block(x_TD, path.step(specimen.call, block.window), key, value)
    return out_TD, key, value


def _sizes(exact: Values, call: range) -> list[float]:
    """The length of what the call makes: the stream, and the slots it fills."""
    stream_TD, *caches = exact
    parts = [stream_TD, *(cache_BKMH[:, :, call.start : call.stop] for cache_BKMH in caches)]
    return [float(part.double().norm()) or 1.0 for part in parts]


def _apart(left: Values, right: Values, sizes: Sequence[float]) -> float:
    """How far two outcomes are from each other, each part in units of its size; infinite where one is not finite."""
    squares = [
        (float((one.double() - other.double()).norm()) / size) ** 2
        for one, other, size in zip(left, right, sizes, strict=True)
    ]
    total = sum(squares) ** 0.5
    return total if total == total else float("inf")


def usual_share(got_TD: torch.Tensor, output_TD: torch.Tensor, clean_TD: torch.Tensor) -> float:
    """The share left at the middle one of the tokens: what falls over an edge at some must not hide the rest."""

    def middle(other_TD: torch.Tensor) -> float:
        return float((got_TD.double() - other_TD.double()).norm(dim=-1).median())

    return share_of(middle(output_TD), middle(clean_TD))


def share_of(part: float, whole: float) -> float:
    """What a part is of the whole; infinite where either is no number, or the whole is nothing."""
    share = part / whole if whole > 0 else float("inf")
    return share if share == share else float("inf")


def plausible(traces: Sequence[Trace], most: float, at_a_time: int) -> Iterator[list[Defect]]:
    """Defects that leave at most the share `most`, best first: those about as good as the best, then the others."""
    ordered = sorted((trace for trace in traces if trace.left <= most), key=lambda trace: trace.left)
    near = [trace for trace in ordered if trace.left <= ALIKE * max(ordered[0].left, ROUNDING)]
    for group in (near, ordered[len(near) :]):
        if group:
            yield [trace.defect for trace in group[:at_a_time]]


ALIKE = 10.0  # times the share that the best one leaves: they may be one and the same on other tokens
ROUNDING = 1e-5  # a share below this is rounding
