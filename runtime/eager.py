"""Eager PyTorch behind the Decoder interface: the baseline that every artifact is measured against."""

from __future__ import annotations

import torch

from blockexport.export.bundle.check_graph import read_graph
from blockexport.export.bundle.file_check import check_artifact
from blockexport.export.bundle.manifest import ONNX_FILE
from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.block.rope import require_table_rows
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.element_types import element_of
from blockexport.models.interface import Interface
from blockexport.runtime.backends import Opening
from blockexport.runtime.compute_device import CPU, ComputeDevice
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.dequantised_checkpoint import DequantisedCheckpoint
from blockexport.runtime.recorded_source import open_source


class EagerDecoder(Decoder):
    """A `DecoderModel` with its cache; the type of the cache is that of the weights."""

    def __init__(self, model: DecoderModel, max_sequence_length: int, device: ComputeDevice = CPU) -> None:
        self.model, self.device = model.eval().to(device.torch), device
        element = element_of(next(model.parameters()).dtype)
        self.interface = Interface(model.config, element, max_sequence_length, model.ends)
        self.reset()

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            outputs: torch.Tensor
            at = self.device.torch
            outputs, self._past = self.model(inputs.to(at), position_ids_BS.to(at), self._past)
        return outputs.to("cpu")


def open_bundle(wanted: Opening) -> EagerDecoder:
    """Eager PyTorch on the source checkpoint, with the adapter that was merged into it, in a bundle's precision; on the
    bundle's own weights where it is quantised.

    Raises:
        NotJudgedError: the source is not there, or has changed since the export.
        UsageError: the weights of a quantised bundle are not its own.
    """
    manifest, interface = wanted.manifest, wanted.interface
    source, slots = manifest.source, interface.max_sequence_length
    read_graph(wanted.folder, manifest)  # which tells a forged M from the bundle's
    require_table_rows(slots, manifest.rope_table_rows, manifest.config)
    checkpoint: Checkpoint
    if manifest.quantisation is not None:
        check_artifact(wanted.folder, manifest, ONNX_FILE, wanted.verify)
        checkpoint = DequantisedCheckpoint(wanted.folder, manifest)
    elif wanted.verify == "nothing":
        lora = None if source.adapter is None else source.adapter.reference
        checkpoint = open_checkpoint(
            wanted.model or source.reference,
            seed=source.seed or 0,
            lora=lora,
            text_only=True,
            headless=interface.ends.to_states,
        )
    else:
        checkpoint = open_source(manifest, wanted.model)
    return EagerDecoder(load_model(checkpoint, interface.dtype, slots, ends=interface.ends), slots, wanted.device)
