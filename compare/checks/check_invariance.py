"""A row alone and in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from blockexport.compare.core.check import Check, FailingCalls, Kind, Outcome, prompt_and_steps
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.figures import Figures
from blockexport.compare.core.immovable import has_moved, moved_by
from blockexport.compare.core.judge_positions import judge_stretch
from blockexport.compare.core.logit_distance import measure
from blockexport.runtime.decoder import Decoder

PROMPT = 20  # of the row that is looked at, the middle one of three
LONGER = 6  # tokens by which the first row's prompt is longer; the last row's is half as long
STEPS = 3


def _prompt(context: CheckContext) -> int:
    room = min(context.plan.decode_positions.stop, context.plan.max_sequence_length - LONGER)
    return min(PROMPT, room - STEPS)


def _cannot(context: CheckContext) -> str | None:
    if context.no_rows:
        return context.no_rows
    if context.config.vocab_size < 2:
        return "a vocabulary of one token has no others for the rows beside"
    return None if _prompt(context) > 1 else "the cache is too small for rows of unequal length"


def _calls(context: CheckContext, figures: Figures | None) -> FailingCalls:
    within = "alone, the row stays within the floor: what is wrong is how the file treats rows of a batch"
    return prompt_and_steps(context.ids_S, PROMPT, "the row alone", within)


@partial(Check, "invariance", Kind.BEHAVIOUR, inapplicable=_cannot, calls=_calls)
def invariance(context: CheckContext) -> Outcome:
    """Where `batch` holds rows against the reference, this holds a row against itself.

    Alone and in a batch of three it may differ by rounding, since other kernels run; with other tokens in the other
    rows it may not differ at all.
    """
    prompt, decoder = _prompt(context), context.decoder
    alone = _run(context, decoder, ())
    beside = ((1, 2), (3, 4)) if context.config.vocab_size > 4 else ((1, 2), (2, 1))
    first, second = (_run(context, decoder, shifts) for shifts in beside)
    positions = range(decoder.interface.ends.told(prompt).start, prompt + STEPS)
    if decoder.lost:  # does eager give NaN or infinity in the same calls?
        for shifts in beside:
            _run(context, context.eager, shifts)
    eager_PV = _run(context, context.eager, ())[-len(positions) :]
    cached = context.expected.measured(eager_PV, positions, context.starts_in_row(positions, prompt))
    what = f"row of {prompt} tokens and {STEPS} steps, alone and between two others"
    between = measure(first, alone.double(), positions)
    result = judge_stretch(context, what, between, context.floors(cached))
    units = moved_by(first, second)
    if not has_moved(units):
        return result
    message = f"other tokens in the rows beside it move a row by {units:.3g} units in the last place"
    return replace(result, complaints=[*result.complaints, message])


def _run(context: CheckContext, decoder: Decoder, shifts: Sequence[int]) -> torch.Tensor:
    """Outputs [P, V] of the row by itself without `shifts`, else between two rows whose ids are shifted by them."""
    prompt = _prompt(context)
    prompts = [prompt + LONGER, prompt, prompt // 2] if shifts else [prompt]
    width, row = max(prompts), len(prompts) // 2
    ids_S = context.ids_S[: prompt + STEPS]
    rows = [(ids_S + shift) % context.config.vocab_size for shift in shifts]
    rows.insert(row, ids_S)
    # A row's prompt, or padding, goes on with its first tokens; the steps give every row its last ones.
    given_BS = torch.stack([torch.cat([ids.repeat(2)[:width], ids[-STEPS:]]) for ids in rows])
    return context.run_rows(decoder, given_BS, prompts, width)[row]
