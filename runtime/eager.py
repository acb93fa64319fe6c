"""Eager PyTorch behind the Decoder interface: the baseline that every artifact is measured against."""

from __future__ import annotations

import torch

from blockexport.models.block.cache import empty_cache
from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.runtime.backends import Opening
from blockexport.runtime.decoder import Decoder


class EagerDecoder(Decoder):
    """A `DecoderModel` with its cache; the type of the cache is that of the weights."""

    def __init__(self, model: DecoderModel, max_sequence_length: int) -> None:
        self.model = model.eval()
        self.config = model.config
        self.max_sequence_length = max_sequence_length
        self.dtype = model.model.norm.weight.dtype
        self.last_logits_only = model.last_logits_only
        self.headless = model.headless
        self.reset()

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's key and value tensors themselves, [B, K, M, H] each."""
        return self._past[2 * layer], self._past[2 * layer + 1]

    def _allocate(self, batch_size: int) -> None:
        self._past = empty_cache(self.config, batch_size, self.max_sequence_length, self.dtype)

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            outputs: torch.Tensor
            outputs, self._past = self.model(inputs, position_ids_BS, self._past)
        return outputs


def open_bundle(wanted: Opening) -> EagerDecoder:
    """Eager PyTorch on the source checkpoint, in a bundle's precision."""
    manifest = wanted.manifest
    slots = wanted.max_sequence_length or manifest.max_sequence_length
    checkpoint = open_checkpoint(wanted.model or manifest.source.reference, seed=manifest.source.seed or 0)
    loaded = load_model(
        checkpoint,
        manifest.precision.torch_dtype,
        slots,
        headless=manifest.headless,
        last_logits_only=manifest.last_logits_only,
    )
    return EagerDecoder(loaded, slots)
