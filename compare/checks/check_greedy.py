"""Greedy generation: the artifact fed with its own tokens."""

from __future__ import annotations

import torch

from blockexport.compare.core.check import Outcome, check
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.logit_distance import Errors, measure
from blockexport.compare.core.noise import floor_of
from blockexport.compare.core.nudge import Nudges, looks
from blockexport.compare.core.power import chance, drawn_by_lot
from blockexport.compare.core.reference import Reference
from blockexport.compare.core.tolerances import TIE_FACTOR

PROMPT = 24
TOKENS = 40


def _cannot(context: CheckContext) -> str | None:
    if context.decoder.headless:
        return "a headless stack gives no tokens"
    return None if context.plan.max_sequence_length > 1 else "a cache of one slot leaves no room to generate"


@check("greedy", "greedy tokens equal the reference's", inapplicable=_cannot)
def greedy(context: CheckContext) -> Outcome:
    """Each token the artifact chooses is the reference's choice for the same prefix, or tied with it.

    The reference reads the sequence that the artifact generated, so one tie does not make all that follows differ.
    """
    room = context.plan.max_sequence_length
    prompt = min(PROMPT, max(1, room // 2), len(context.ids_S))
    steps = min(TOKENS, room - prompt + 1)
    chosen = _generate(context, context.ids_S[:prompt], steps)
    sequence = torch.cat([context.ids_S[:prompt], chosen[:-1]])
    positions = range(prompt - 1, prompt - 1 + steps)
    expected_PV = context.reference.run([sequence], [positions], context.progress)[0]
    best = expected_PV.argmax(-1)
    margin = expected_PV.gather(1, best[:, None])[:, 0] - expected_PV.gather(1, chosen[:, None])[:, 0]
    different = chosen != best
    for runs in looks(lambda nudges: _eager_errors(context, sequence, positions, expected_PV, nudges)):
        floor = floor_of(runs, context.decoder.dtype)
        allowed_P = TIE_FACTOR.value * floor.max_P
        tied = different & (margin <= allowed_P)
        wrong = (different & ~tied).nonzero()[:, 0].tolist()
        if not wrong:
            break
    figures = {
        "prompt": prompt,
        "tokens": chosen.tolist(),
        "ties": (tied.nonzero()[:, 0] + prompt).tolist(),
        "disagreements": [w + prompt for w in wrong],
    }
    ties = f", {int(tied.sum())} of them tied" if bool(tied.any()) else ""
    message = f"{steps} greedy tokens are the reference's{ties}"
    if not floor.finite or not bool(expected_PV.isfinite().all()):
        return Outcome(message, steps, doubts=["eager PyTorch or the reference gives NaN or infinity"], figures=figures)
    complaints = []
    if wrong:
        first = wrong[0]
        complaints.append(
            f"token {first + 1} of {steps} is {int(chosen[first])} and the reference chooses {int(best[first])}, "
            f"preferring it by {float(margin[first]):.3g} (floor {float(floor.max_P[first]):.3g})"
        )
    lot = drawn_by_lot(chance(expected_PV, allowed_P))
    return Outcome(message, steps, complaints, lot, figures)


def _eager_errors(
    context: CheckContext, sequence: torch.Tensor, positions: range, expected_PV: torch.Tensor, nudges: Nudges
) -> list[Errors]:
    """Eager's errors on the generated sequence, in several runs."""
    eager = Reference(context.checkpoint, context.decoder.dtype)
    runs = eager.runs([sequence], [positions], nudges, context.progress)
    return [measure(outputs_PV, expected_PV, positions) for (outputs_PV,) in runs]


def _generate(context: CheckContext, prompt_S: torch.Tensor, steps: int) -> torch.Tensor:
    """`steps` token ids, each the artifact's likeliest (the lowest id among equals)."""
    decoder = context.decoder
    decoder.reset(1)
    logits_V = decoder.prefill(prompt_S[None])[0, -1]
    chosen = []
    for i in range(steps):
        context.progress("greedy: step", i, steps)
        chosen.append(int(logits_V.argmax()))
        if i + 1 < steps:
            logits_V = decoder.step(torch.tensor([[chosen[-1]]]))[0, -1]
    context.progress("greedy: step", steps, steps)
    return torch.tensor(chosen)
