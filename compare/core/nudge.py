"""Other roundings of the same mathematics, to see how far eager's own error depends on luck.

At one position eager's error is one sample of a random quantity: where two attention scores all but tie, or a logit
happens to come out right, another order of sums gives ten times as much or as little. Runs that permute their sums do
not show it in half precision, where all of them round to the same values. So a run is repeated with its stream moved by
a unit in the last place here and there, as random rounding does (Vignes' CESTAC method, 1974, takes three such runs):
what follows is rounded anew, and the spread of the runs is the sensitivity of each position. A second look has more
such runs, and as many that move it by more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import torch

from blockexport.compare.core.immovable import as_integers
from blockexport.compare.core.logit_distance import Distances, measure_distances

RUNS = 3
MORE_RUNS = 12  # of each kind, where an artifact leaves the floor of those at a few positions
LARGE = 8  # units in the last place by which the larger ones move the stream; their error counts divided by it
SHARE = 1 / 6
"""Of the values that are moved where a layer begins. One rounding has a variance of 1/12 of a squared unit in the last
place, and a layer rounds its stream twice, once for each addition: this share of whole units has the same variance."""


class Nudge:
    """Moves some values of a tensor to a neighbouring one of its type; which ones depends on the seed alone."""

    weight = 1.0  # of the error of a run with it

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x` of any shape and floating type, moved; zeros, the largest values and what is not finite stay."""
        integers = as_integers(x.dtype)
        chance = torch.rand(x.shape, generator=self._generator)
        # The bits of a float, read as an integer, count its magnitude in units in the last place.
        steps = (chance < SHARE / 2).to(integers) - (chance > 1 - SHARE / 2).to(integers)
        movable = (x != 0) & (x.abs() < torch.finfo(x.dtype).max)
        return (x.contiguous().view(integers) + steps * movable).view(x.dtype)


class LargeNudge(Nudge):
    """Moves every value by several units, as noise `LARGE` times as large as one unit would.

    Where the error grows with the noise, an eighth of it is what a small nudge shows. Where two scores tie and a
    rounding decides which token is looked at, small nudges may all fall on one side, and these do not. But the error of
    a flip is no larger for them, so they alone do not make a floor.
    """

    weight = 1 / LARGE

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x` of any shape and floating type, moved."""
        noise = torch.randn(x.shape, generator=self._generator, dtype=x.dtype)
        return x * (1 + LARGE * torch.finfo(x.dtype).eps * noise)


Nudges = Sequence[Nudge | None]
"""One for each of several runs; None leaves a run as it is."""

Result = TypeVar("Result")


class Looks(Generic[Result]):
    """What `run` makes of the runs that a floor needs, one as it is and `RUNS` that round anew; then, for a second
    look, of these, `MORE_RUNS` of their kind and as many with larger nudges. Each look is made once, and only when
    asked for.

    Attributes:
        made: the looks made so far.
    """

    def __init__(self, run: Callable[[Nudges], list[Result]]) -> None:
        self._run = run
        self.made: list[list[Result]] = []

    def __iter__(self) -> Iterator[list[Result]]:
        if not self.made:
            self.made.append(self._run((None, *(Nudge(seed) for seed in range(RUNS)))))
        yield self.made[0]
        if len(self.made) == 1:
            more = range(RUNS, RUNS + MORE_RUNS)
            self.made.append(self.made[0] + self._run([kind(seed) for kind in (Nudge, LargeNudge) for seed in more]))
        yield self.made[1]


def weight_of(nudge: Nudge | None) -> float:
    """What the error of a run with it counts."""
    return 1.0 if nudge is None else nudge.weight


def run_distances(
    nudges: Nudges,
    runs: Iterable[Sequence[torch.Tensor]],
    expected: Sequence[torch.Tensor],
    positions: Sequence[Sequence[int]],
) -> list[list[Distances]]:
    """What the errors of several runs count.

    Args:
        nudges: of each run.
        runs: the outputs [P, V] of each, one or more that have `expected` and `positions` of their own.
        expected: what they are held against.
        positions: of the rows.
    """
    found: list[list[Distances]] = []
    for nudge, run in zip(nudges, runs, strict=True):
        known = found[0] if found else [None] * len(expected)
        held = zip(run, expected, positions, known, strict=True)
        found.append([measure_distances(*one).weighted(weight_of(nudge)) for one in held])
    return found
