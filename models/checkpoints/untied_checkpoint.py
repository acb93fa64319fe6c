"""A checkpoint whose output head is a tensor of its own, although the source ties it to the embedding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD

if TYPE_CHECKING:
    import torch

    from blockexport.models.quantised_matrix import QuantisedMatrix


class UntiedCheckpoint(Checkpoint):
    """The tensors of `source`, with the embedding once more as the output head."""

    def __init__(self, source: Checkpoint) -> None:
        assert source.config.tie_word_embeddings
        self._source = source
        self.config = replace(source.config, tie_word_embeddings=False)
        self.source, self.notes, self.range_is_stated = source.source, source.notes, source.range_is_stated
        head = replace(source.entries[EMBEDDING], name=OUTPUT_HEAD)
        self.entries = {**source.entries, OUTPUT_HEAD: head}

    @property
    def base(self) -> Checkpoint:
        """See `Checkpoint.base`."""
        return self._source.base

    @property
    def adapter(self) -> Path | None:
        """See `Checkpoint.adapter`."""
        return self._source.adapter

    def read(self, name: str) -> torch.Tensor:
        """See `Checkpoint.read`."""
        return self._source.read(self.origin(name))

    def strips(self, name: str) -> Iterator[torch.Tensor]:
        """See `Checkpoint.strips`."""
        return self._source.strips(self.origin(name))

    def origin(self, name: str) -> str:
        """See `Checkpoint.origin`."""
        return EMBEDDING if name == OUTPUT_HEAD else name

    def read_codes(self, name: str) -> QuantisedMatrix:
        """See `Checkpoint.read_codes`."""
        return replace(self._source.read_codes(self.origin(name)), name=name)
