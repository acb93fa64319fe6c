"""Another tool's decoder whose past and present caches are one buffer."""

from __future__ import annotations

import torch

from blockexport.models import io_names
from blockexport.models.block.cache import visible_slots
from blockexport.models.errors import UsageError
from blockexport.runtime.foreign.foreign_decoder import ForeignDecoder
from blockexport.runtime.foreign.foreign_graph import CallValues, ForeignGraph
from blockexport.runtime.onnx_session import bind, require_shapes


class SharedCacheDecoder(ForeignDecoder):
    """GroupQueryAttention's convention: one buffer [B, K, M, H] for past and present, slot and position the same."""

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffers themselves."""
        key, value = super().cache(layer)
        return (key.clone(), value.clone()) if self.in_turn else (key, value)

    def _no_slots(self) -> str | None:
        return None

    def _allocate(self, batch_size: int) -> None:
        super()._allocate(batch_size)
        found = self.convention.names
        self._past_names, self._present_names = (
            [ends[role] for role in listed(self.convention.layers)]
            for ends, listed in ((found.inputs, io_names.past_names), (found.outputs, io_names.present_names))
        )
        self._bind_caches()

    def _bind_caches(self) -> None:
        self._binding = self.graph.session.io_binding()
        for past, present, buffer in zip(self._past_names, self._present_names, self._past, strict=True):
            bind(self._binding.bind_input, past, buffer)
            bind(self._binding.bind_output, present, buffer)

    def _check_call(self, position_ids_BS: torch.Tensor) -> None:
        rows, length = position_ids_BS.shape
        if rows > 1 and length > 1 and int(position_ids_BS[:, 0].max()) > 0:
            raise UsageError("GroupQueryAttention takes further chunks of a prompt in one row only")

    def _call_graph(self, graph: ForeignGraph, ids_BS: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        start_B, length = position_ids_BS[:, 0], position_ids_BS.shape[1]
        start = int(start_B.max())
        # The operator takes the last S entries of a row for the new ones, so padding counts among them; it is written
        # after the row's own tokens, where no query sees it until it is overwritten.
        mask_BT = torch.arange(start + length)[None, :] < start_B[:, None] + length
        slots_M = torch.arange(self.max_sequence_length)
        values = CallValues(
            ids_BS, mask_BT, position_ids_BS, start, lambda window: visible_slots(position_ids_BS, slots_M, window)
        )
        if self.in_turn:
            self._bind_caches()  # a binding keeps what was watched in the call before
        given = graph.given(values)
        for name, tensor in given.items():
            bind(self._binding.bind_input, name, tensor)
        seen = self._names_watched(graph)
        # Anew, since shapes change; in the order of their first binding, after the caches.
        for name in (self.convention.names.outputs[io_names.LOGITS], *seen):
            self._binding.bind_output(name)
        try:
            graph.session.run_with_iobinding(self._binding)
        except Exception as error:  # ONNX Runtime's exceptions share no public base class
            wanted = dict(zip(self._present_names, self._past, strict=True))
            require_shapes(graph.session, self._binding, wanted, position_ids_BS)
            raise graph.failed(error, length, start) from error
        logits, *values_seen = (torch.from_numpy(v.numpy()) for v in self._binding.get_outputs()[len(self._past) :])
        self._tell(graph, dict(zip(seen, values_seen, strict=False)))
        self._tell_caches()
        return logits.to(self.dtype)
