"""Stages of one model in one process: what a stage gives, the next one takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.interface import Ends
from blockexport.runtime.decoder import Decoder


class ChainDecoder(Decoder):
    """The whole model that some stages are, token ids to logits. Each stage holds the cache of its layers.

    Args:
        stages: in their order, each of the same M.
        config: of the whole model.
    """

    def __init__(self, stages: Sequence[Decoder], config: ModelConfig) -> None:
        self.stages = list(stages)
        self.interface = replace(stages[0].interface, config=config, ends=Ends.LOGITS)
        self.reset()

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Decoder.cache`."""
        stage, own = self.place(layer)
        return self.stages[stage].cache(own)

    def held(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Decoder.held`."""
        stage, own = self.place(layer)
        return self.stages[stage].held(own)

    def make_room(self, slots: int) -> None:
        """See `Decoder.make_room`."""
        for stage in self.stages:
            stage.make_room(slots)

    def place(self, layer: int) -> tuple[int, int]:
        """The stage that a layer is in, and its number there."""
        for number, stage in enumerate(self.stages):
            if layer < stage.config.num_hidden_layers:
                return number, layer
            layer -= stage.config.num_hidden_layers
        raise IndexError(f"there is no layer {layer} after the last one")

    @contextlib.contextmanager
    def _alone(self, rows: range) -> Iterator[None]:
        lengths_B = self.lengths_B
        with contextlib.ExitStack() as stack:
            for stage in self.stages:
                stack.enter_context(stage._alone(rows))
            self.lengths_B = lengths_B[rows.start : rows.stop]
            try:
                yield
                lengths_B = lengths_B.index_copy(0, torch.arange(rows.start, rows.stop), self.lengths_B)
            finally:
                self.lengths_B = lengths_B

    def _allocate(self, batch_size: int) -> None:
        for stage in self.stages:
            stage.reset(batch_size)

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            inputs = stage._call(inputs, position_ids_BS)  # the lengths of rows are the chain's, and no stage's
        return inputs
