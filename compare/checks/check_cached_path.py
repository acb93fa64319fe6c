"""Prefill, teacher-forced decode, and the last cache slots: the shipped file along one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from blockexport.compare.core.check import Check, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.judge_positions import judge_stretch, with_not_finite


def _judge(context: CheckContext, what: str, positions: Sequence[int]) -> Outcome:
    seen = context.observed(positions)
    where = f"{what} ({len(seen)} position{'s' if len(seen) > 1 else ''})"
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
    if context.decoder.foreign is not None and context.decoder.foreign.no_slots is not None:
        return context.decoder.foreign.no_slots
    return None if context.plan.last else "the prefill fills the whole cache"


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
