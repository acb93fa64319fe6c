"""How far some logits are from the reference, position by position; the logits themselves need not be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch

BLOCK = 8  # positions widened to float64 at a time: of most vocabularies they stay in the processor's cache


@dataclass(frozen=True)
class Distances:
    """Distances from the reference at some positions (P of them), all float64 but the ids and `finite_P`.

    For a headless stack the "logits" are hidden states, and where embeddings come out, embeddings.
    """

    positions_P: torch.Tensor  # int64
    rms_P: torch.Tensor  # root mean square over the vocabulary
    max_P: torch.Tensor  # largest absolute difference
    finite_P: torch.Tensor  # bool: no NaN and no infinity
    spread_P: torch.Tensor  # standard deviation of the logits
    reference_rms_P: torch.Tensor  # size of the reference's own logits
    reference_max_P: torch.Tensor
    reference_spread_P: torch.Tensor  # their standard deviation
    starts_P: torch.Tensor  # int64: the first token that an output is made of; the position itself but for means

    @property
    def rms(self) -> float:
        """Over all positions together."""
        return float(self.rms_P.square().mean().sqrt())

    @property
    def relative_l2(self) -> float:
        """Length of the error over length of the reference, all positions together."""
        size = float(self.reference_rms_P.square().mean().sqrt())
        return self.rms / size if size else 0.0

    def select(self, positions: Sequence[int]) -> Self:
        """The errors at `positions`, which must all be there."""
        where = {p: i for i, p in enumerate(self.positions_P.tolist())}
        return self._at(torch.tensor([where[p] for p in positions], dtype=torch.int64))

    def weighted(self, weight: float) -> Self:
        """The same with every distance times `weight`."""
        return replace(self, rms_P=weight * self.rms_P, max_P=weight * self.max_P)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Several stretches one after the other."""
        return cls(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    def _at(self, index: torch.Tensor | slice) -> Self:
        return type(self)(*(getattr(self, f.name)[index] for f in fields(self)))


@dataclass(frozen=True)
class Errors(Distances):
    """Distances, and what the logits say of the next token, which means nothing for a headless stack."""

    kl_P: torch.Tensor  # Kullback-Leibler divergence of the artifact's distribution from the reference's, in nats
    top1_P: torch.Tensor  # int64: the artifact's likeliest token
    reference_top1_P: torch.Tensor
    margin_P: torch.Tensor  # reference logit of the reference's token less that of the artifact's; 0 where they agree


def measure(
    outputs_PV: torch.Tensor,
    reference_PV: torch.Tensor,
    positions: Sequence[int],
    starts: Sequence[int] | None = None,
) -> Errors:
    """Errors of `outputs` [P, V] of any floating type against the reference [P, V], `positions` naming the rows;
    `starts` are the first tokens that outputs are made of, where those are others."""
    begun, blocks = positions if starts is None else starts, _blocks(len(positions))
    return Errors.join([_measure(outputs_PV[i], reference_PV[i], positions[i], begun[i]) for i in blocks])


def measure_distances(
    outputs_PV: torch.Tensor,
    reference_PV: torch.Tensor,
    positions: Sequence[int],
    same_reference: Distances | None = None,
    starts: Sequence[int] | None = None,
) -> Distances:
    """What a noise floor is made of: as `measure`, without the tokens, in a fifth of the time.

    Args:
        outputs_PV: of any floating type.
        reference_PV: what they are held against.
        positions: of the rows.
        same_reference: of other outputs at the same positions, from the same reference, whose figures are taken over.
        starts: see `measure`.
    """
    parts, begun = [], positions if starts is None else starts
    for i in _blocks(len(positions)):
        known = None if same_reference is None else same_reference._at(i)
        parts.append(_distances(outputs_PV[i].double(), reference_PV[i], positions[i], begun[i], known))
    return Distances.join(parts)


def finite_rows(outputs: torch.Tensor) -> torch.Tensor:
    """Where there is neither NaN nor infinity along the last dimension; `isfinite` takes fifteen times as long."""
    return outputs.amax(-1).isfinite() & outputs.amin(-1).isfinite()


def _blocks(count: int) -> list[slice]:
    """About `BLOCK` rows each. None is alone unless there is but one: its sums would be split among the threads."""
    parts = max(1, -(-count // BLOCK))
    return [slice(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


def _distances(
    got: torch.Tensor,
    reference_PV: torch.Tensor,
    positions: Sequence[int],
    starts: Sequence[int],
    known: Distances | None,
) -> Distances:
    want = reference_PV.double()
    difference = got - want
    return Distances(
        positions_P=torch.tensor(list(positions), dtype=torch.int64),
        rms_P=difference.square().mean(-1).sqrt(),
        max_P=difference.abs().amax(-1),
        finite_P=finite_rows(got),
        spread_P=_spread(got),
        reference_rms_P=known.reference_rms_P if known else want.square().mean(-1).sqrt(),
        reference_max_P=known.reference_max_P if known else want.abs().amax(-1),
        reference_spread_P=known.reference_spread_P if known else _spread(want),
        starts_P=torch.tensor(list(starts), dtype=torch.int64),
    )


def _spread(logits_PV: torch.Tensor) -> torch.Tensor:
    """Standard deviation [P]; `std` takes eight times as long."""
    return (logits_PV - logits_PV.mean(-1, keepdim=True)).square().mean(-1).sqrt()


def _measure(
    outputs_PV: torch.Tensor, reference_PV: torch.Tensor, positions: Sequence[int], starts: Sequence[int]
) -> Errors:
    got, want = outputs_PV.double(), reference_PV.double()
    log_p, log_q = want.log_softmax(-1), got.log_softmax(-1)
    top1, reference_top1 = got.argmax(-1), want.argmax(-1)
    rows = torch.arange(len(positions))
    return Errors(
        **vars(_distances(got, want, positions, starts, None)),
        kl_P=(log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0),
        top1_P=top1,
        reference_top1_P=reference_top1,
        margin_P=want[rows, reference_top1] - want[rows, top1],
    )
