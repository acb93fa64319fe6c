"""A bundle's ONNX file in ONNX Runtime's CUDA provider: weights and caches stay on the GPU, steps are CUDA graphs.

What goes in and comes out of a step lies at fixed addresses, a set for each number of rows and slots, so that ONNX
Runtime records the step once and launches it as a whole from then on. Never executed by us on a GPU: tried against
libraries that launch nothing (`tests/cuda_stubs.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import torch

from blockexport.models import io_names
from blockexport.models.block.cache import empty_cache
from blockexport.runtime import onnx_placement
from blockexport.runtime.backends import Opening
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.onnx_decoder import OnnxDecoder, failed_node
from blockexport.runtime.onnx_session import GRAPH_ID, NO_GRAPH, bind, ort, run_options

_Key = tuple[int, int]
_MOST_GRAPHS = 64  # of steps: rows that `serve` runs alone have some of their own, and each takes memory


@dataclass(frozen=True)
class _Call:
    """What a call reads and writes on the GPU, bound; `graph` is the number of its CUDA graph."""

    binding: ort.IOBinding
    given: torch.Tensor
    positions: torch.Tensor
    output: torch.Tensor
    graph: str


class CudaOnnxDecoder(OnnxDecoder):
    """The decoder of a bundle on ONNX Runtime's CUDA provider. Outputs come back to the processor."""

    _caches: dict[_Key, list[torch.Tensor]]
    _steps: dict[_Key, _Call]

    def __init__(self, wanted: Opening) -> None:
        self._caches, self._steps, self._graphs = {}, {}, count(1)
        super().__init__(wanted)

    def placement(self) -> onnx_placement.Placement | None:
        """See `Decoder.placement`."""

        def run(tokens: int) -> None:
            positions_BS = torch.arange(tokens)[None]
            ids = torch.zeros(1, tokens, *([self.config.hidden_size] if self.headless else []))
            call = self._bound(ids.shape, positions_BS, NO_GRAPH)  # a graph that is launched logs nothing
            call.given.zero_()
            call.positions.copy_(positions_BS)
            self._session.run_with_iobinding(call.binding, run_options({GRAPH_ID: NO_GRAPH}))

        self.reset()
        prompt = min(2, self.max_sequence_length)
        try:
            return onnx_placement.placement(self._session, {"a prompt": lambda: run(prompt), "a step": lambda: run(1)})
        finally:
            self.reset()

    def _allocate(self, batch_size: int) -> None:
        if any(rows != batch_size for rows, _ in self._caches):
            self._caches, self._steps = {}, {}  # those of another number of rows
        self._past = self._cache_of(batch_size, self._first_slots)
        self._bindings = {}
        self.device.synchronize()

    def _cache_of(self, batch_size: int, slots: int) -> list[torch.Tensor]:
        """Zeroed caches; asked for again, those that the graphs of their steps know."""
        key = batch_size, slots
        if key in self._caches:
            for past_BKMH in self._caches[key]:
                past_BKMH.zero_()
        else:
            self._caches[key] = empty_cache(self.config, batch_size, slots, self.dtype, self.device.torch)
        return list(self._caches[key])

    def _grow(self, slots: int) -> None:
        smaller, held = self._past, self._past[0].shape[2]
        self._past = self._cache_of(self.batch_size, slots)
        for past_BKMH, before_BKMH in zip(self._past, smaller, strict=True):
            past_BKMH[:, :, :held] = before_BKMH
        self.device.synchronize()

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        self.make_room(int(position_ids_BS[:, 0].max()) + position_ids_BS.shape[1])
        call = self._call_for(inputs, position_ids_BS)
        call.given.copy_(inputs)
        call.positions.copy_(position_ids_BS)
        try:
            self._session.run_with_iobinding(call.binding, run_options({GRAPH_ID: call.graph} if self._records else {}))
        except Exception as error:  # ONNX Runtime's exceptions share no public base class
            raise failed_node(error) from error
        return call.output.to("cpu", copy=True)

    def _call_for(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> _Call:
        key = self._past[0].data_ptr(), self.batch_size
        if position_ids_BS.shape[1] != 1 or (key not in self._steps and len(self._steps) >= _MOST_GRAPHS):
            return self._bound(inputs.shape, position_ids_BS, NO_GRAPH)
        if key not in self._steps:
            self._steps[key] = self._bound(inputs.shape, position_ids_BS, str(next(self._graphs)))
        return self._steps[key]

    def _bound(self, shape: Sequence[int], position_ids_BS: torch.Tensor, graph: str) -> _Call:
        at = self.device.torch
        element = self.dtype if self.headless else torch.int64
        given = torch.empty(tuple(shape), dtype=element, device=at)
        positions = torch.empty_like(position_ids_BS, device=at)
        output = torch.empty(self.interface.output_shape(*position_ids_BS.shape), dtype=self.dtype, device=at)
        binding = self._bind_caches()
        bind(binding.bind_input, self.interface.input_name, given, self.device)
        bind(binding.bind_input, io_names.POSITION_IDS, positions, self.device)
        bind(binding.bind_output, self.interface.output_name, output, self.device)
        return _Call(binding, given, positions, output, graph)


def open_bundle(wanted: Opening) -> Decoder:
    """The decoder of a bundle on the device that was asked for."""
    return CudaOnnxDecoder(wanted) if wanted.device.on_gpu else OnnxDecoder(wanted)
