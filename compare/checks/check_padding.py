"""A right-padded prompt: the padding is neither seen nor left behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch

from blockexport.compare.core.check import Check, FailingCalls, Kind, Outcome, prompt_and_steps
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.embeddings import embedding
from blockexport.compare.core.figures import Figures
from blockexport.compare.core.immovable import has_moved, moved_by
from blockexport.compare.core.judge_positions import judge_stretch
from blockexport.compare.core.logit_distance import Errors
from blockexport.compare.core.slots import slots_of_row
from blockexport.models.interface import Pooling
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.eager import EagerDecoder

PROMPT = 20
PADDING = 5
LEFT = 0.05  # of an embedding's error: a mistake that leaves no more is named


def _sizes(context: CheckContext) -> tuple[int, int]:
    """Tokens of prompt and of padding, with room for one step more than there is padding."""
    room = context.plan.decode_positions.stop
    padding = min(PADDING, (room - 1) // 2)
    return min(PROMPT, room - padding - 1), padding


def _cannot(context: CheckContext) -> str | None:
    if context.no_rows:
        return context.no_rows
    if context.config.vocab_size < 2:
        return "a vocabulary of one token has no other to pad with"
    return None if _sizes(context)[1] else "the judged sequence is too short for a prompt with padding"


def _calls(context: CheckContext, figures: Figures | None) -> FailingCalls:
    within = (
        "without padding the same tokens stay within the floor: what is wrong is how the file treats a padded prompt"
    )
    return prompt_and_steps(context.ids_S, PROMPT, "the row alone", within)


@partial(Check, "padding", Kind.NUMERICAL, inapplicable=_cannot, calls=_calls)
def padding(context: CheckContext) -> Outcome:
    """A padded prefill and steps through the padding's slots, with two sorts of tokens in the padding.

    Outputs and slots must be the same for both, and within the floor of the sequence that never had padding.
    """
    length, pad = _sizes(context)
    one = _run(context, context.decoder, 1)
    other = _run(context, context.decoder, max(2, context.config.vocab_size // 2))
    errors = _errors(context, one)
    cached = _errors(context, _run(context, context.eager, 1)).select(errors.positions_P.tolist())
    what = f"prompt of {length} tokens and {pad} of padding, then {pad + 1} steps"
    result = judge_stretch(context, what, errors, context.floors(cached))
    moved = moved_by(one.outputs_PV, other.outputs_PV)
    moved_slots = max(moved_by(a, b) for a, b in zip(one.slots, other.slots, strict=True))
    complaints = [
        f"other tokens in the padding move {of} by {units:.3g} units in the last place"
        for of, units in (("outputs", moved), ("the cache", moved_slots))
        if has_moved(units)
    ]
    complaints += _counted_in(context, one) if complaints or result.complaints else []
    if not complaints:
        return result
    said = "; ".join(complaints)
    return replace(result, complaints=[*result.complaints, said] if result.complaints else [f"{what}: {said}"])


@dataclass(frozen=True)
class _Run:
    positions: list[int]
    outputs_PV: torch.Tensor
    slots: list[torch.Tensor]


def _run(context: CheckContext, decoder: Decoder, shift: int) -> _Run:
    """Prefill and steps, the padding being the true continuation with every id shifted."""
    length, pad = _sizes(context)
    stop, width = length + pad + 1, length + pad
    ids_S = context.ids_S[:stop]
    junk = (ids_S[length:width] + shift) % context.config.vocab_size
    given_S = torch.cat([ids_S[:length], junk, ids_S[length:]])
    (outputs_PV,) = context.run_rows(decoder, given_S[None], [length], width)
    first = decoder.interface.ends.told(length).start
    slots = slots_of_row(decoder, stop)
    return _Run(list(range(first, stop)), outputs_PV, slots)


def _counted_in(context: CheckContext, run: _Run) -> list[str]:
    """Whether the embedding of the padded prompt is that of its padding, or of that as well: a clause."""
    ends, eager = context.ends, context.eager.decoder
    if ends.pooling is None or not isinstance(eager, EagerDecoder):
        return []
    kept: list[torch.Tensor] = []  # padding has positions of its own, so its states are those of this very call
    hook = eager.model.model.norm.register_forward_hook(lambda module, inputs, output: kept.append(output))
    _run(context, eager, 1)
    hook.remove()
    states_SD = kept[0].double().cpu()
    if ends.pooling is Pooling.MEAN:
        padded_1D, said = embedding(states_SD, ends), "the mean is taken over the padding, too"
    else:
        padded_1D, said = embedding(states_SD[-1:], ends), "the embedding is of the last column, which is padding"
    got_1D = run.outputs_PV[:1].double()
    own = float((got_1D - embedding(states_SD[: _sizes(context)[0]], ends)).norm())
    return [said] if float((got_1D - padded_1D).norm()) <= LEFT * own else []


def _errors(context: CheckContext, run: _Run) -> Errors:
    # The sequence is judged from its first position on, so a position is its own index in the reference's outputs.
    starts = context.starts_in_row(run.positions, _sizes(context)[0])
    return context.expected.measured(run.outputs_PV, run.positions, starts)
