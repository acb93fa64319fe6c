"""Eager PyTorch behind the Decoder interface: the baseline that every artifact is measured against."""

from __future__ import annotations

import torch

from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.element_types import element_of
from blockexport.models.interface import Interface
from blockexport.runtime.backends import Opening
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.dequantised_checkpoint import DequantisedCheckpoint


class EagerDecoder(Decoder):
    """A `DecoderModel` with its cache; the type of the cache is that of the weights."""

    def __init__(self, model: DecoderModel, max_sequence_length: int) -> None:
        self.model = model.eval()
        element = element_of(next(model.parameters()).dtype)
        self.interface = Interface(model.config, element, max_sequence_length, model.ends)
        self.reset()

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            outputs: torch.Tensor
            outputs, self._past = self.model(inputs, position_ids_BS, self._past)
        return outputs


def open_bundle(wanted: Opening) -> EagerDecoder:
    """Eager PyTorch on the source checkpoint, with the adapter that was merged into it, in a bundle's precision; on the
    bundle's own weights where it is quantised."""
    source, interface = wanted.manifest.source, wanted.interface
    checkpoint: Checkpoint
    if wanted.manifest.quantisation is None:
        lora = None if source.adapter is None else source.adapter.reference
        checkpoint = open_checkpoint(wanted.model or source.reference, seed=source.seed or 0, lora=lora)
    else:
        checkpoint = DequantisedCheckpoint(wanted.folder, wanted.manifest)
    slots = interface.max_sequence_length
    return EagerDecoder(load_model(checkpoint, interface.dtype, slots, ends=interface.ends), slots)
