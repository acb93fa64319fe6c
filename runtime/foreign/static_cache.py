"""Another tool's decoder whose caches have a fixed length."""

from __future__ import annotations

import torch

from blockexport.models.block.cache import visible_slots
from blockexport.models.errors import UsageError
from blockexport.runtime.foreign import names as roles
from blockexport.runtime.foreign.foreign_decoder import ForeignDecoder
from blockexport.runtime.foreign.foreign_graph import CallValues, ForeignGraph


class StaticCacheDecoder(ForeignDecoder):
    """Caches of M slots that go in and come out; slot and position are the same."""

    def _no_slots(self) -> str | None:
        return None if self.first is self.graph else "the graph for the prompt makes a cache of its own"

    def _no_rows(self) -> str | None:
        if {roles.CACHE_POSITION, roles.CUMULATIVE_LENGTH.format(i=0)} & set(self.convention.ports):
            return "all rows of the file stand at one position of the cache"
        if any(graph.convention.fixed_batch is not None for graph in (self.first, self.graph)):
            return "the file fixes its batch at one row"
        return "the file takes one token in each call" if self.first.convention.one_token else None

    def _check_call(self, position_ids_BS: torch.Tensor) -> None:
        if self.foreign.no_rows is not None and len(set(position_ids_BS[:, 0].tolist())) > 1:
            raise UsageError(self.foreign.no_rows)

    def _call_graph(self, graph: ForeignGraph, ids_BS: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        start_B, length = position_ids_BS[:, 0], position_ids_BS.shape[1]
        start = int(start_B.max())
        slots_M = torch.arange(self.max_sequence_length)
        columns_BM = slots_M[None, :] < start_B[:, None] + length
        values = CallValues(
            ids_BS, columns_BM, position_ids_BS, start, lambda window: visible_slots(position_ids_BS, slots_M, window)
        )
        logits, present = self._run_graph(graph, values, self._past)
        self._require_caches(present, self.max_sequence_length, position_ids_BS)
        self._past = present
        self._tell_caches()
        return logits
