"""A quantised file as programs run it for speed: with the inputs of its products in 8 bits."""

from __future__ import annotations

from functools import partial

from blockexport.compare.audits.coded_matrix import CodedCheckpoint
from blockexport.compare.core.check import Check, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.integer_activations import IntegerReference, Rounding, in_8_bits
from blockexport.compare.core.judge_positions import judge_stretch
from blockexport.models.wording import plural


def _one_arithmetic(context: CheckContext) -> str | None:
    if not isinstance(context.original, CodedCheckpoint):
        return "no weights are quantised"
    return "it is not known to be run with activations in 8 bits" if context.in_integers is None else None


@partial(
    Check,
    "integers",
    Kind.NUMERICAL,
    inapplicable=_one_arithmetic,
    unlocated="other checks run the same graph with exact activations: this one is about the runtime's own products",
)
def integers(context: CheckContext) -> Outcome:
    """Prompt and steps with activations rounded to 8 bits. The floor is the error of PyTorch that rounds them, too.

    Its own error, and not the distance between the two: a rounding that falls the other way in an early layer moves
    what later ones round, so that two right ways to sum differ by nearly as much as each errs.
    """
    assert context.in_integers is not None and isinstance(context.original, CodedCheckpoint)
    plan = context.plan
    positions = [*plan.prefill_positions, *plan.decode_positions]
    decoder = context.in_integers()
    artifact = context.walk(decoder, plan.calls(to_last_slot=False), positions, "artifact, integer activations").errors
    seen = artifact.positions_P.tolist()
    whole = IntegerReference(
        context.checkpoint, decoder.dtype, context.decoder.interface.ends, _rounding(context.original)
    )
    ids_S = context.ids_S[: plan.decode_positions.stop]
    expected_PV = context.expected.at(seen, artifact.starts_P.tolist())
    what = f"activations in 8 bits ({plural(len(seen), 'position')})"
    floors = whole.floors(ids_S, artifact, expected_PV, context.progress)
    return judge_stretch(context, what, artifact, floors)


def _rounding(checkpoint: CodedCheckpoint) -> dict[str, Rounding]:
    """Of every matrix that is multiplied by in codes."""
    blocks = {name: checkpoint.blocks_of(name) for name in checkpoint.in_codes}
    return {name: partial(in_8_bits, block=block, order_K=order_K) for name, (block, order_K) in blocks.items()}
