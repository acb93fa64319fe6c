"""How far some logits are from the reference, position by position; the logits themselves need not be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch

BLOCK = 32  # positions widened to float64 at a time


@dataclass(frozen=True)
class Errors:
    """Distances from the reference at some positions (P of them), all float64 but the ids and `finite_P`.

    For a headless stack the "logits" are hidden states, and the top-1, margin and KL figures mean nothing.
    """

    positions_P: torch.Tensor  # int64
    rms_P: torch.Tensor  # root mean square over the vocabulary
    max_P: torch.Tensor  # largest absolute difference
    kl_P: torch.Tensor  # Kullback-Leibler divergence of the artifact's distribution from the reference's, in nats
    finite_P: torch.Tensor  # bool: no NaN and no infinity
    top1_P: torch.Tensor  # int64: the artifact's likeliest token
    reference_top1_P: torch.Tensor
    margin_P: torch.Tensor  # reference logit of the reference's token less that of the artifact's; 0 where they agree
    reference_rms_P: torch.Tensor  # size of the reference's own logits
    reference_max_P: torch.Tensor
    reference_spread_P: torch.Tensor  # their standard deviation
    spread_P: torch.Tensor  # that of the artifact's

    @property
    def rms(self) -> float:
        """Over all positions together."""
        return float(self.rms_P.square().mean().sqrt())

    @property
    def relative_l2(self) -> float:
        """Length of the error over length of the reference, all positions together."""
        size = float(self.reference_rms_P.square().mean().sqrt())
        return self.rms / size if size else 0.0

    def select(self, positions: Sequence[int]) -> Errors:
        """The errors at `positions`, which must all be there."""
        where = {int(p): i for i, p in enumerate(self.positions_P)}
        index = torch.tensor([where[p] for p in positions], dtype=torch.int64)
        return Errors(*(getattr(self, f.name)[index] for f in fields(self)))

    def weighted(self, weight: float) -> Errors:
        """The same with every distance times `weight`."""
        return replace(self, rms_P=weight * self.rms_P, max_P=weight * self.max_P)

    @staticmethod
    def join(parts: Sequence[Errors]) -> Errors:
        """Several stretches one after the other."""
        return Errors(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Errors)))


def measure(outputs_PV: torch.Tensor, reference_PV: torch.Tensor, positions: Sequence[int]) -> Errors:
    """Errors of `outputs` [P, V] of any floating type against the reference [P, V], `positions` naming the rows."""
    blocks = [
        _measure(outputs_PV[i : i + BLOCK], reference_PV[i : i + BLOCK], positions[i : i + BLOCK])
        for i in range(0, len(positions), BLOCK)
    ]
    return Errors.join(blocks)


def _measure(outputs_PV: torch.Tensor, reference_PV: torch.Tensor, positions: Sequence[int]) -> Errors:
    got, want = outputs_PV.double(), reference_PV.double()
    difference = got - want
    log_p, log_q = want.log_softmax(-1), got.log_softmax(-1)
    top1, reference_top1 = got.argmax(-1), want.argmax(-1)
    rows = torch.arange(len(positions))
    return Errors(
        positions_P=torch.tensor(list(positions), dtype=torch.int64),
        rms_P=difference.square().mean(-1).sqrt(),
        max_P=difference.abs().amax(-1),
        kl_P=(log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0),
        finite_P=torch.isfinite(got).all(-1),
        top1_P=top1,
        reference_top1_P=reference_top1,
        margin_P=want[rows, reference_top1] - want[rows, top1],
        reference_rms_P=want.square().mean(-1).sqrt(),
        reference_max_P=want.abs().amax(-1),
        reference_spread_P=want.std(-1, correction=0),
        spread_P=got.std(-1, correction=0),
    )
