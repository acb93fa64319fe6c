"""The prompt in several calls instead of one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from blockexport.compare.core.check import Check, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.evidence import gather
from blockexport.compare.core.failing_calls import FailingCalls
from blockexport.compare.core.figures import Figures
from blockexport.compare.core.judge_positions import judge_stretch
from blockexport.compare.core.logit_distance import Errors, measure
from blockexport.compare.core.position_plan import calls_of
from blockexport.runtime.decoder import Decoder

CHUNKS = (1, 2, 3, 7, 16)  # tokens per call; the rest of the prompt is the last one


def _too_short(context: CheckContext) -> str | None:
    return None if context.plan.prefill > 1 else "a prompt of one token is one chunk"


def _calls(context: CheckContext, figures: Figures | None = None) -> FailingCalls:
    calls = calls_of((*CHUNKS, context.plan.prefill), context.plan.prefill)
    within = (
        "a second walk in the same chunks stays within the floor: the file does not repeat itself, or fails by little "
        "and by chance"
    )
    return FailingCalls(context.ids_S, calls, "the prompt in chunks", within)


@partial(Check, "chunked", Kind.NUMERICAL, inapplicable=_too_short, calls=_calls)
def chunked(context: CheckContext) -> Outcome:
    """Each chunk reads the slots of the ones before it: several queries after a prefix, which no other call has."""
    calls = _calls(context).calls
    artifact = _run(context, context.decoder, calls)
    cached = _run(context, context.eager, calls).select(artifact.positions_P.tolist())
    what = f"prompt of {context.plan.prefill} tokens in chunks of {', '.join(str(len(call)) for call in calls)}"
    return judge_stretch(context, what, artifact, context.floors(cached))


def _run(context: CheckContext, decoder: Decoder, calls: Sequence[range]) -> Errors:
    said = gather(decoder, context.checkpoint, context.ids_S, calls, context.plan.prefill_positions)
    # Every position of the prompt is judged, so a position is its own index in the reference's outputs.
    return measure(said.outputs_PV, context.expected[0][list(said.positions)], said.positions)
