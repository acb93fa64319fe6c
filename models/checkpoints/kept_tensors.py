"""A checkpoint that is read again and again: what has to be converted at every reading is kept."""

from __future__ import annotations

import torch

from blockexport.models.checkpoints.checkpoint import Checkpoint

LIMIT = 1 << 30  # bytes: all of a model of 250 million parameters in float32, a few layers of a large one


class KeptTensors(Checkpoint):
    """Another checkpoint with the first tensors that were dequantised or made kept in memory, up to `limit` bytes.

    Tensors that map their file's pages are not among them: reading those again costs nothing. Nothing is ever dropped:
    a pass over all layers, repeated, would otherwise find exactly what it needs gone.

    Args:
        checkpoint: the one to read.
        limit: bytes to hold.
    """

    def __init__(self, checkpoint: Checkpoint, limit: int = LIMIT) -> None:
        self.config, self.source, self.entries = checkpoint.config, checkpoint.source, checkpoint.entries
        self._checkpoint = checkpoint
        self._left = limit
        self._kept: dict[str, torch.Tensor] = {}

    def read(self, name: str) -> torch.Tensor:
        """See `Checkpoint.read`. The tensor is not the reader's alone: it must not be written to."""
        if name in self._kept:
            return self._kept[name]
        with torch.inference_mode(mode=False):  # the next reader may not be in it
            tensor = self._checkpoint.read(name)
        size = tensor.numel() * tensor.element_size()
        if self.entries[name].location is None and size <= self._left:
            self._left -= size
            self._kept[name] = tensor
        return tensor
