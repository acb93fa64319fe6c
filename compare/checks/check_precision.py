"""Whether the model survives the precision it was exported in, and where on the way its numbers are first lost, and in
which weights. The artifact has no part in it: eager PyTorch in the precision and in float64 go through the model side
by side, each on its own numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from blockexport.compare.core.check import Check, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.could_fail import SPREAD_LEFT, doubts, spread_of
from blockexport.compare.core.figures import Figures
from blockexport.compare.core.logit_distance import measure
from blockexport.compare.core.noise import floor_of
from blockexport.compare.core.reference import Reference
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.interface import Ends
from blockexport.models.precision import Precision
from blockexport.models.wording import number

_LOST = 0.5  # of a value's size: what is off by as much is no longer that value
_WEIGHT_LOST = 0.1  # of a tensor's size: rounding costs 0.3 % in bfloat16, and less in float16


@dataclass(frozen=True)
class PrecisionFigures(Figures):
    """Eager's rms error over the judged sequence, and the standard deviation of the reference's outputs."""

    error: float
    spread: float


@partial(
    Check, "precision", Kind.MODEL, unlocated="this check runs eager PyTorch alone, and the file has no part in it"
)
def precision(context: CheckContext) -> Outcome:
    """Eager PyTorch in the artifact's precision gives what the model gives in float64, as nearly as can be judged.

    Where it does not, every artifact of that precision is as wrong, and the noise floor says nothing. It is bad where
    numbers overflow, where weights or outputs vanish, and a wider type would hold them. Else nothing can be judged.
    """
    runs, dtype = next(context.runs(context.reference_positions)), context.decoder.dtype
    errors, floor = runs[0], floor_of(runs, dtype)
    rows = [run for i, row in enumerate(context.rows) for run in next(context.runs(range(len(row.ids_S)), i))]
    finite = floor.finite and all(bool(run.finite_P.all()) for run in rows)
    blind = [*doubts(errors, floor), *context.doubts]
    spread = spread_of(errors.reference_spread_P)
    name = str(dtype).removeprefix("torch.")
    figures = PrecisionFigures(errors.rms, spread)
    if (finite and not blind) or not bool(errors.reference_rms_P.isfinite().all()) or not spread > 0:
        share = errors.rms / spread if spread > 0 else 0.0
        message = f"eager PyTorch in {name} is off by {number(share)} of the spread of the model's outputs"
        return Outcome(message, len(errors.positions_P), doubts=blind, figures=figures)
    loss = _first_loss(context, dtype)
    weights = None if dtype is torch.float32 else _lost_weights(context.checkpoint, dtype)
    vanished = spread_of(errors.spread_P) < SPREAD_LEFT * spread
    where = weights or loss
    holding = _wider_that_hold(context, dtype)
    if (not finite or weights or vanished) and holding:
        remedy = " or ".join(f"--{wider}" for wider in holding)
        return Outcome(
            "",
            1,
            [f"{name} cannot hold this model{f': {where}' if where else ''}. Export with {remedy}"],
            figures=figures,
        )
    told = [*blind[:1], *([f"the first to go: {where}"] if where else [])]
    if len(set(context.ids_S.tolist())) == 1:
        told += ["the text is one token over and over: judge another"]
    elif not holding:
        told += ["no wider precision holds it either: the checkpoint's own numbers are at fault"]
    return Outcome("", len(errors.positions_P), doubts=told, figures=figures)


def _wider_that_hold(context: CheckContext, dtype: torch.dtype) -> list[Precision]:
    """Other precisions of wider range or more digits in which eager stays finite and near to float64."""

    def holds(kind: torch.dtype) -> bool:
        run = Reference(context.checkpoint, kind, ends=context.decoder.interface.ends)
        outputs_PV = run.run([context.ids_S], [context.reference_positions], context.progress)[0]
        errors = measure(outputs_PV, context.expected.outputs[0], context.reference_positions)
        floor = floor_of([errors], kind)
        return floor.finite and not doubts(errors, floor)

    wider = {Precision.FP16: (Precision.BF16, Precision.FP32), Precision.BF16: (Precision.FP32,)}
    return [one for one in wider.get(Precision.of(dtype), ()) if holds(one.torch_dtype)]


def _first_loss(context: CheckContext, dtype: torch.dtype) -> str | None:
    """Where it is on the judged sequence, or else in a row of the batch."""
    ends = context.decoder.interface.ends
    for ids_S in (context.ids_S, *(row.ids_S for row in context.rows)):
        if (loss := _loss_on(context.checkpoint, dtype, ids_S, ends)) is not None:
            return loss
    return None


@torch.inference_mode()
def _loss_on(checkpoint: Checkpoint, dtype: torch.dtype, ids_S: torch.Tensor, ends: Ends) -> str | None:
    """Where arithmetic in `dtype` first loses what float64 says of the tokens, for people: the first value that is NaN,
    infinite or off by half of its size; None where it does nowhere."""
    own, exact = (Reference(checkpoint, kind, ends=ends).values(ids_S) for kind in (dtype, torch.float64))
    largest, name, end = 0.0, str(dtype).removeprefix("torch."), torch.finfo(dtype).max
    for (place, got), (_, want) in zip(own, exact, strict=True):
        largest = max(largest, float(want.abs().max()))
        finite = bool(got.isfinite().all())
        if not finite or float((got.double() - want).norm()) >= _LOST * float(want.norm()) > 0:
            what = "is wrong by half of its size or more" if finite else "becomes NaN or infinite"
            return f"{place} {what} (numbers reach {largest:.6g} up to there, and {name} ends at {end:.6g})"
    return None


def _lost_weights(checkpoint: Checkpoint, dtype: torch.dtype) -> str | None:
    """The tensor that rounding to `dtype` hurts most, where it costs more than a tenth of it; a clause for people."""
    worst, said = _WEIGHT_LOST, None
    for name in checkpoint.entries:
        weight = checkpoint.read(name).double()
        size = float(weight.norm())
        share = float((weight.to(dtype).double() - weight).norm()) / size if size else 0.0
        if share > worst:
            smallest = torch.finfo(dtype).smallest_normal
            worst = share
            said = (
                f"{name} loses {share:.0%} of its size when it is rounded (its largest value is "
                f"{float(weight.abs().max()):.3g}, and below {smallest:.3g} the type has fewer digits or none)"
            )
    return said
