"""Rows of one static cache, each lent to one tenant at a time; any backend's decoder.

A tenant's slots are those from 0 to its length, so a new one sees nothing of whoever had the row before: what comes
after its length is invisible until it is overwritten. A chunk of a prompt runs its row alone, and a step runs all rows
from the first to the last that has a token. A row between them that has none gets a token all the same, in the slot
after its length, where it is as invisible and is overwritten by the row's own next one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from blockexport.models.errors import UsageError
from blockexport.runtime.decoder import Decoder


class Rows:
    """The rows of `decoder`, whose cache is made anew with `count` of them.

    Raises:
        UsageError: another tool's decoder, whose rows cannot be run apart; more rows than an engine was built for.
        NotJudgedError: the cache would be larger than this machine's memory.
    """

    def __init__(self, decoder: Decoder, count: int) -> None:
        if decoder.foreign is not None:
            raise UsageError("the file of another tool was given: rows are lent in blockexport's own bundles")
        self.decoder = decoder
        self.count = count
        self._lent = [False] * count
        decoder.reset(count)
        self._first_slots = decoder.held_slots

    @property
    def lent(self) -> int:
        """How many have a tenant."""
        return sum(self._lent)

    def lend(self) -> int | None:
        """The first free row, empty; None where there is none."""
        if all(self._lent):
            return None
        row = self._lent.index(False)
        self._lent[row] = True
        return row

    def take_back(self, row: int, *, spoilt: bool = False) -> None:
        """End a tenancy. A `spoilt` row has held NaN or infinity, which are seen through any mask: 0 times NaN is NaN.

        Where no row is lent any more, a cache that has grown becomes small again.
        """
        self._lent[row] = False
        self.decoder.lengths_B[row] = 0
        if spoilt:
            self.decoder.clear_row(row)
        if not self.lent and self.decoder.held_slots > self._first_slots:
            self.empty()

    def empty(self) -> None:
        """Make the cache anew: nothing is left of any tenant, and the rows stay lent to whom they are."""
        self.decoder.reset(self.count)

    def left(self, row: int) -> int:
        """Slots of a row that are still free."""
        return self.decoder.max_sequence_length - int(self.decoder.lengths_B[row])

    def append(self, row: int, inputs_S: torch.Tensor) -> torch.Tensor:
        """Run a chunk of one row's prompt: int64 [S] ids, or embeddings [S, D]; its outputs [S, V], or [1, V]."""
        return self.decoder.prefill_rows(range(row, row + 1), inputs_S[None])[0]

    def step(self, inputs: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Run one token of each row that is named: an id (int64 [1]) or an embedding [1, D]; each row's output [V]."""
        rows = range(min(inputs), max(inputs) + 1)
        idle = [row for row in rows if row not in inputs]
        before = self.decoder.lengths_B[idle]
        # A row that is full has nothing to come, so that its last slot is free to be written.
        self.decoder.lengths_B[idle] = before.clamp(max=self.decoder.max_sequence_length - 1)
        nothing = torch.zeros_like(inputs[rows.start])
        try:
            outputs_B1V = self.decoder.prefill_rows(rows, torch.stack([inputs.get(row, nothing) for row in rows]))
        finally:
            self.decoder.lengths_B[idle] = before
        return {row: outputs_B1V[row - rows.start, 0] for row in inputs}
