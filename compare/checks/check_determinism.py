"""The same calls twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from blockexport.compare.core.check import Check, FailingCalls, Kind, Outcome, prompt_and_steps
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.evidence import gather
from blockexport.compare.core.figures import Figures
from blockexport.compare.core.immovable import same_bits
from blockexport.compare.core.position_plan import calls_of

PROMPT = 64
STEPS = 4
LATE = 8  # further steps, evenly over the cache up to its last slot


@dataclass(frozen=True)
class DeterminismFigures(Figures):
    """How many positions were run twice, and those that came out different."""

    positions: int
    different: list[int]


def _calls(context: CheckContext, figures: Figures | None) -> FailingCalls:
    within = (
        "against eager both runs stay within the floor: something is random, or reads memory that nobody wrote, by "
        "less than that"
    )
    return prompt_and_steps(context.ids_S, min(PROMPT, context.plan.prefill), "the prompt alone", within)


@partial(Check, "determinism", Kind.BEHAVIOUR, calls=_calls)
def determinism(context: CheckContext) -> Outcome:
    """A prefill and a few steps, each time from an empty cache, and single steps at places up to the last slot: dropout
    left on, say, or memory that nobody wrote.
    """
    sizes = (min(PROMPT, context.plan.prefill), *(1,) * STEPS)
    calls = calls_of(sizes, len(context.ids_S))
    positions = range(calls[-1].stop)
    said = gather(context.decoder, context.checkpoint, context.ids_S, calls, positions, twice=True)
    assert said.repeated_PV is not None
    late = _late_steps(context, calls[-1].stop)
    first = [*said.outputs_PV, *_run_late(context, late)]
    second = [*said.repeated_PV, *_run_late(context, late)]
    stepped = [*said.positions, *late]
    different = [p for p, one, other in zip(stepped, first, second, strict=True) if not same_bits(one, other)]
    figures = DeterminismFigures(len(stepped), different)
    what = f"two runs of {len(positions)} positions and {len(late)} late steps"
    complaints, doubts = [], []
    if different:
        pairs = zip(first, second, strict=True)
        largest = max(float((other.double() - one.double()).abs().max()) for one, other in pairs)
        many = f"{len(different)} differ, by {largest:.3g} at the most"
        complaints.append(f"{what}: {many}, first position {different[0]}")
    if all(bool((outputs == first[0].flatten()[0]).all()) for outputs in first):
        doubts.append(f"{what}: every output is the same number")
    return Outcome(f"{what}: the same bits", len(stepped), complaints, doubts, figures)


def _late_steps(context: CheckContext, begin: int) -> list[int]:
    """Positions after `begin` to step at; none of a cache that grows, which takes no position but its next."""
    if context.no_slots:
        return []
    slots = context.plan.max_sequence_length
    return sorted({max(begin, slots * part // LATE - 1) for part in range(1, LATE + 1)} & set(range(begin, slots)))


def _run_late(context: CheckContext, late: Sequence[int]) -> list[torch.Tensor]:
    """Outputs [V] of steps at the positions `late`. The slots that none of them has filled hold zeros."""
    decoder = context.decoder
    inputs = context.inputs(decoder, context.ids_S[None, :1])
    decoder.reset(1)
    return [decoder.forward(inputs, torch.tensor([[position]]))[0, -1].cpu().clone() for position in late]
