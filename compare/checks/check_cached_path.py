"""The judged sequence through the shipped file: prefill, teacher-forced decode, the last cache slots, single steps over
the whole cache, and the prompt in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from blockexport.compare.core.check import Check, FailingCalls, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.figures import Figures
from blockexport.compare.core.judge_positions import judge_stretch, with_not_finite
from blockexport.compare.core.position_plan import calls_of
from blockexport.models.wording import plural

CHUNKS = (1, 2, 3, 7, 16)  # tokens per call; the rest of the prompt is the last one


def _judge(context: CheckContext, what: str, positions: Sequence[int]) -> Outcome:
    seen = context.observed(positions)
    where = f"{what} ({plural(len(seen), 'position')})"
    floors = context.floors(context.eager_errors.select(seen))
    return judge_stretch(context, where, context.artifact_errors.select(seen), floors)


@partial(Check, "prefill", Kind.NUMERICAL, along=True)
def prefill(context: CheckContext) -> Outcome:
    """Every position of the first call (the last one only where the artifact gives no others)."""
    return _judge(context, f"prefill of {context.plan.prefill} tokens", context.plan.prefill_positions)


def _no_steps(context: CheckContext) -> str | None:
    return None if context.plan.decode else "no decode steps were asked for"


@partial(Check, "decode", Kind.NUMERICAL, inapplicable=_no_steps, along=True)
def decode(context: CheckContext) -> Outcome:
    """Each step after the prefill, fed with the sequence's own next token."""
    return _judge(context, f"{context.plan.decode} decode steps", context.plan.decode_positions)


def _no_last_slot(context: CheckContext) -> str | None:
    return context.no_slots or (None if context.plan.last else "the prefill fills the whole cache")


@partial(Check, "last-slot", Kind.NUMERICAL, inapplicable=_no_last_slot, to_last_slot=True, along=True)
def last_slot(context: CheckContext) -> Outcome:
    """The cache filled to the brim: the last steps, up to slot M - 1. What is given out on the way there is finite."""
    positions = context.plan.last_positions
    what = f"steps into slots {positions.start} to {positions.stop - 1} of {context.plan.max_sequence_length}"
    result = _judge(context, what, positions)
    stray = sorted(set(context.artifact_walk.not_finite) - set(context.judged_positions))
    if not stray:
        return result
    message = f"NaN or infinity on the way to the last slots, first at position {stray[0]}"
    return with_not_finite(replace(result, complaints=[message]), stray)


def _again(context: CheckContext, calls: Sequence[range], what: str, same: str) -> FailingCalls:
    within = (
        f"a second walk in the same {same} stays within the floor: the file does not repeat itself, or fails by little "
        "and by chance"
    )
    return FailingCalls(context.ids_S, calls, what, within)


def _spread_again(context: CheckContext, figures: Figures | None) -> FailingCalls:
    return _again(context, context.plan.spread_calls, "single steps and chunks over the whole cache", "calls")


@partial(Check, "spread", Kind.NUMERICAL, to_last_slot=True, calls=_spread_again)
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
    what = f"{plural(steps, 'step')} over {slots} slots, chunks between them ({len(seen)} positions)"
    floors = context.floors(context.cached_errors(plan.spread_calls, seen))
    result = judge_stretch(context, what, artifact.errors, floors)
    if not artifact.not_finite:
        return result
    message = f"{what}: NaN or infinity, first at position {artifact.not_finite[0]}"
    return with_not_finite(replace(result, complaints=[message]), artifact.not_finite)


def _too_short(context: CheckContext) -> str | None:
    return None if context.plan.prefill > 1 else "a prompt of one token is one chunk"


def _chunks(context: CheckContext) -> list[range]:
    return calls_of((*CHUNKS, context.plan.prefill), context.plan.prefill)


def _chunks_again(context: CheckContext, figures: Figures | None) -> FailingCalls:
    return _again(context, _chunks(context), "the prompt in chunks", "chunks")


@partial(Check, "chunked", Kind.NUMERICAL, inapplicable=_too_short, calls=_chunks_again)
def chunked(context: CheckContext) -> Outcome:
    """Each chunk reads the slots of the ones before it: several queries after a prefix, which no other call has."""
    calls, positions = _chunks(context), context.plan.prefill_positions
    artifact = context.walk(context.decoder, calls, positions, "artifact, chunked").errors
    cached = context.walk(context.eager, calls, positions, "eager, chunked").errors
    what = f"prompt of {len(positions)} tokens in chunks of {', '.join(str(len(call)) for call in calls)}"
    return judge_stretch(context, what, artifact, context.floors(cached.select(artifact.positions_P.tolist())))
