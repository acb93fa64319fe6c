"""What outputs should be, by the float64 reference, and what eager makes of them: whole sequences, without a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import torch

from blockexport.compare.core.embeddings import embeddings_at
from blockexport.compare.core.logit_distance import Distances, Errors, measure, measure_distances
from blockexport.compare.core.nudge import Nudges, run_distances, weight_of
from blockexport.compare.core.reference import Reference
from blockexport.models.interface import Ends
from blockexport.models.progress import Progress

Run = Callable[[int, Sequence[int], Sequence[int]], Distances]
"""One run of eager on all sequences: its errors in one of them, at positions, each of the tokens from a start on."""


class Expected:
    """The reference's outputs of the judged sequence and of each row, made on first use and kept.

    Attributes:
        outputs: [P, V] of the judged sequence (at the positions given first), then of each row (all of it). Where
            embeddings come out these are states, of which `at` makes them.
    """

    def __init__(
        self,
        reference: Reference,
        ends: Ends,
        sequences: Sequence[torch.Tensor],
        positions: Sequence[Sequence[int]],
        progress: Progress,
    ) -> None:
        self._reference, self._ends, self._progress = reference, ends, progress
        self._sequences, self._positions = sequences, positions

    @cached_property
    def outputs(self) -> list[torch.Tensor]:
        return self._reference.run(self._sequences, self._positions, self._progress)

    @cached_property
    def _where(self) -> dict[int, int]:
        return {position: i for i, position in enumerate(self._positions[0])}

    def at(self, positions: Sequence[int], starts: Sequence[int] | None = None, row: int | None = None) -> torch.Tensor:
        """Outputs [P, V] at some positions of the judged sequence, or of a row.

        Args:
            positions: some of those whose outputs are kept.
            starts: the first tokens that embeddings are made of; each of its last token's state alone by default.
            row: which row; None for the judged sequence.
        """
        outputs = self.outputs[0 if row is None else 1 + row]
        if self._ends.pooling is not None:
            return embeddings_at(outputs, positions, positions if starts is None else starts, self._ends)
        return outputs[[self._where[p] for p in positions] if row is None else list(positions)]

    def measured(
        self,
        outputs_PV: torch.Tensor,
        positions: Sequence[int],
        starts: Sequence[int] | None = None,
        row: int | None = None,
    ) -> Errors:
        """The errors of outputs [P, V]; see `at`."""
        return measure(outputs_PV, self.at(positions, starts, row), positions, starts)

    def runs_in(self, dtype: torch.dtype, nudges: Nudges) -> list[Run]:
        """What eager makes of the same sequences in `dtype`, once for each of `nudges`."""
        whole = Reference(self._reference.checkpoint, dtype, ends=self._ends)
        runs = whole.runs(self._sequences, self._positions, nudges, self._progress)
        if self._ends.pooling is None:
            made = run_distances(nudges, runs, self.outputs, self._positions)
            return [partial(_selected, distances) for distances in made]
        weighted = zip(map(weight_of, nudges), runs, strict=True)
        return [partial(self._pooled, states, weight) for weight, states in weighted]

    def _pooled(
        self, states: list[torch.Tensor], weight: float, of: int, positions: Sequence[int], starts: Sequence[int]
    ) -> Distances:
        """The errors of embeddings that are made of a run's states; see `Run`."""
        outputs = embeddings_at(states[of], positions, starts, self._ends)
        wanted = embeddings_at(self.outputs[of], positions, starts, self._ends)
        return measure_distances(outputs, wanted, positions, starts=starts).weighted(weight)


def _selected(distances: list[Distances], of: int, positions: Sequence[int], starts: Sequence[int]) -> Distances:
    """Those of a run that were measured when it was made; see `Run`."""
    return distances[of].select(positions)
