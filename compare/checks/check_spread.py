"""Single steps over the whole cache, with short chunks between them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from blockexport.compare.core.check import Check, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.failing_calls import FailingCalls
from blockexport.compare.core.figures import Figures
from blockexport.compare.core.judge_positions import judge_stretch, with_not_finite


def _calls(context: CheckContext, figures: Figures | None) -> FailingCalls:
    what = "single steps and chunks over the whole cache"
    within = (
        "a second walk in the same calls stays within the floor: the file does not repeat itself, or fails by little "
        "and by chance"
    )
    return FailingCalls(context.ids_S, context.plan.spread_calls, what, within)


@partial(Check, "spread", Kind.NUMERICAL, to_last_slot=True, calls=_calls)
def spread(context: CheckContext) -> Outcome:
    """A walk of its own from slot 0 to M - 1. `prefill`, `decode` and `last-slot` take long stretches in one way each;
    here a step comes in every part of the cache, and chunks of many lengths begin at many places.

    Outputs are held against the floor where there is a reference for them: at every step, at the end of the chunk
    before it, and along prefill and decode. The floor is that of the other walk, whose eager half gives outputs at all
    of these. NaN and infinity fail at any position.
    """
    plan, positions = context.plan, context.reference_positions
    artifact = context.walk(context.decoder, plan.spread_calls, positions, "artifact, spread")
    seen = artifact.errors.positions_P.tolist()
    slots, steps = plan.max_sequence_length, len(plan.spread_steps)
    what = f"{steps} step{'s' if steps > 1 else ''} over {slots} slots, chunks between them ({len(seen)} positions)"
    floors = context.floors(context.eager_errors.select(seen))
    result = judge_stretch(context, what, artifact.errors, floors)
    if not artifact.not_finite:
        return result
    message = f"{what}: NaN or infinity, first at position {artifact.not_finite[0]}"
    return with_not_finite(replace(result, complaints=[message]), artifact.not_finite)
