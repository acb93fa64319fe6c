"""Another tool's decoder whose cache grows with the tokens."""

from __future__ import annotations

import torch

from blockexport.models import io_names
from blockexport.models.block.cache import empty_cache, visible_slots
from blockexport.models.errors import UsageError
from blockexport.runtime.foreign.foreign_decoder import ForeignDecoder
from blockexport.runtime.foreign.foreign_graph import CallValues, ForeignGraph


class GrowingCacheDecoder(ForeignDecoder):
    """optimum's convention: each call hands back past and new entries in one tensor, which the next call takes.

    Rows share the length of that tensor; which of its columns belong to a row is what `attention_mask` says.
    """

    _valid_B: torch.Tensor | None = None  # tokens of each row in the call that is running; None: no padding

    def prefill(self, inputs: torch.Tensor, lengths_B: torch.Tensor | None = None) -> torch.Tensor:
        """See `Decoder.prefill`; here the graph is told of the padding."""
        self._valid_B = lengths_B
        try:
            return super().prefill(inputs, lengths_B)
        finally:
            self._valid_B = None

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies [B, K, M, H] with each row's entries at the slots of their positions."""
        return self._by_slot(self._past[2 * layer]), self._by_slot(self._past[2 * layer + 1])

    def _by_slot(self, grown_BKTH: torch.Tensor) -> torch.Tensor:
        rows, heads, _, width = grown_BKTH.shape
        slots = torch.zeros(rows, heads, self.max_sequence_length, width, dtype=grown_BKTH.dtype)
        for row, columns_T in enumerate(self._held_BT):
            slots[row, :, : int(columns_T.sum())] = grown_BKTH[row][:, columns_T]
        return slots

    def _no_slots(self) -> str | None:
        return "the file's cache grows with the tokens, and has neither free slots nor a last one"

    def _allocate(self, batch_size: int) -> None:
        self._past = empty_cache(self.config, batch_size, 0, self.dtype)
        self._held_BT = torch.zeros(batch_size, 0, dtype=torch.bool)

    def _check_call(self, position_ids_BS: torch.Tensor) -> None:
        held_B = self._held_BT.sum(1)
        if not torch.equal(position_ids_BS[:, 0], held_B):
            raise UsageError(
                f"positions start at {position_ids_BS[:, 0].tolist()} and the rows hold {held_B.tolist()} tokens: a "
                "cache that grows goes on where it stopped"
            )

    def _call_graph(self, graph: ForeignGraph, ids_BS: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        rows, length = position_ids_BS.shape
        padding_B = torch.zeros(rows, dtype=torch.int64) if self._valid_B is None else length - self._valid_B
        if bool((padding_B > 0).any()):
            self._check_padding()
        # To the left: column c of the graph is token c - padding of the row.
        columns_BS = (torch.arange(length)[None, :] - padding_B[:, None]) % length
        held_BT = torch.cat([self._held_BT, torch.arange(length)[None, :] >= padding_B[:, None]], dim=1)
        positions_BS = (held_BT.cumsum(1) - 1).clamp(min=0)[:, -length:]
        start = self._held_BT.shape[1]

        def visible(window: int | None) -> torch.Tensor:
            columns = torch.arange(start, start + length).expand(rows, -1)
            return visible_slots(columns, torch.arange(start + length), window) & held_BT[:, None, None, :]

        values = CallValues(ids_BS.gather(1, columns_BS), held_BT, positions_BS, start, visible)
        logits, present = self._run_graph(graph, values, self._past)
        self._require_caches(present, start + length, position_ids_BS)
        self._past, self._held_BT = present, held_BT
        self._tell_caches()
        return self._turned_back(logits, padding_B)

    @staticmethod
    def _turned_back(outputs_BSV: torch.Tensor, padding_B: torch.Tensor) -> torch.Tensor:
        if outputs_BSV.dim() != 3 or len(outputs_BSV) != len(padding_B):
            return outputs_BSV  # of a wrong shape, which the caller finds
        if outputs_BSV.shape[1] == 1 or not bool((padding_B > 0).any()):
            return outputs_BSV
        shifts = padding_B.tolist()
        return torch.stack([row_SV.roll(-by, 0) for row_SV, by in zip(outputs_BSV, shifts, strict=True)])

    def _check_padding(self) -> None:
        if self.foreign.no_rows is not None:
            raise UsageError(self.foreign.no_rows)
        if self._held_BT.shape[1] and io_names.POSITION_IDS not in self.convention.ports:
            raise UsageError("without position_ids only a first prompt may be padded")
