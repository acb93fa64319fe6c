"""Greedy generation: the artifact fed with its own tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from blockexport.compare.core.check import Check, FailingCalls, Kind, Outcome, prompt_and_steps
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.figures import Figures, StretchFigures
from blockexport.compare.core.judge_positions import extended, judge_stretch
from blockexport.compare.core.logit_distance import Distances, measure
from blockexport.compare.core.noise import floor_of
from blockexport.compare.core.nudge import Looks, Nudges, run_distances
from blockexport.compare.core.reference import Reference
from blockexport.models.progress import counted

PROMPT = 24
TOKENS = 40


def _cannot(context: CheckContext) -> str | None:
    if not context.has_top1:
        return "without logits there are no tokens"
    return None if context.plan.max_sequence_length > 1 else "a cache of one slot leaves no room to generate"


@dataclass(frozen=True)
class GreedyFigures(StretchFigures):
    """The stretch of the generated tokens; `prompt` is how many there were before."""

    prompt: int
    tokens: list[int]


def _calls(context: CheckContext, figures: Figures | None) -> FailingCalls | None:
    if not isinstance(figures, GreedyFigures):
        return None
    prompt, tokens = figures.prompt, figures.tokens
    sequence = torch.cat([context.ids_S[:prompt], torch.tensor(tokens[:-1], dtype=torch.int64)])
    what = f"a prompt of {prompt} tokens and the {len(tokens)} generated after it"
    within = "the logits along the generated tokens stay within the floor when they are given again"
    return prompt_and_steps(sequence, prompt, what, within, len(tokens))


@partial(Check, "greedy", Kind.NUMERICAL, inapplicable=_cannot, calls=_calls)
def greedy(context: CheckContext) -> Outcome:
    """Each token the artifact chooses is the reference's choice for the same prefix, or tied with it.

    The reference reads the sequence that the artifact generated, so one tie does not make all that follows differ. The
    logits are judged with the tokens: where the noise is large, nearly any token would be a tie.
    """
    room = context.plan.max_sequence_length
    prompt = min(PROMPT, max(1, room // 2), len(context.ids_S))
    steps = min(TOKENS, room - prompt + 1)
    logits_PV = _generate(context, context.ids_S[:prompt], steps)
    chosen = logits_PV.argmax(-1)
    sequence = torch.cat([context.ids_S[:prompt], chosen[:-1]])
    positions = range(prompt - 1, prompt - 1 + steps)
    expected_PV = context.reference.run([sequence], [positions], context.progress)[0]
    eager = Reference(context.checkpoint, context.decoder.dtype)

    def errors_of_eager(nudges: Nudges) -> list[Distances]:
        runs = eager.runs([sequence], [positions], nudges, context.progress)
        return [one for (one,) in run_distances(nudges, runs, [expected_PV], [positions])]

    floors = (floor_of(runs, context.decoder.dtype) for runs in Looks(errors_of_eager))
    outcome = judge_stretch(context, f"{steps} greedy tokens", measure(logits_PV, expected_PV, positions), floors)
    return extended(outcome, GreedyFigures, prompt=prompt, tokens=chosen.tolist())


def _generate(context: CheckContext, prompt_S: torch.Tensor, steps: int) -> torch.Tensor:
    """Logits [steps, V], each but the first after the likeliest token (the lowest id among equals) of those before."""
    decoder = context.decoder
    decoder.reset(1)
    given, logits = prompt_S[None], list[torch.Tensor]()
    for _ in counted(range(steps), "greedy: step", context.progress):
        logits.append(decoder.prefill(given)[0, -1].cpu().clone())
        given = logits[-1].argmax()[None, None]
    return torch.stack(logits)
