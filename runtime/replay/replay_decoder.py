"""A bundle's ONNX file behind the Decoder interface, replayed in torch: the backend called `replay`."""

from __future__ import annotations

from pathlib import Path

import torch

from blockexport.export.bundle.check_graph import read_graph
from blockexport.export.bundle.file_check import Verify, check_artifact
from blockexport.export.bundle.manifest import ONNX_FILE, Manifest
from blockexport.models import io_names
from blockexport.models.block.cache import empty_cache
from blockexport.models.block.rope import require_table_rows
from blockexport.models.config.model_config import ModelConfig
from blockexport.runtime.backends import Opening
from blockexport.runtime.decoder import Decoder, require_shape
from blockexport.runtime.replay.replay_graph import Observer, ReplayGraph


class ReplayDecoder(Decoder):
    """A decoder's graph run node by node.

    Attributes:
        graph: the graph.
        observer: told every intermediate value of the runs to come; None is nobody.

    Args:
        graph: with the inputs and outputs of `models/io_names.py`.
        config: the model's dimensions.
        dtype: type of cache and logits.
        max_sequence_length: M, slots per row.
        last_logits_only: see `Decoder`.
    """

    def __init__(
        self,
        graph: ReplayGraph,
        config: ModelConfig,
        dtype: torch.dtype,
        max_sequence_length: int,
        *,
        last_logits_only: bool = False,
    ) -> None:
        self.graph = graph
        self.config = config
        self.dtype = dtype
        self.max_sequence_length = max_sequence_length
        self.last_logits_only = last_logits_only
        self.headless = io_names.INPUTS_EMBEDS in graph.inputs
        self.observer: Observer | None = None
        self.reset()

    @classmethod
    def open(
        cls, folder: Path, manifest: Manifest, *, max_sequence_length: int | None = None, verify: Verify = "sample"
    ) -> ReplayDecoder:
        """The decoder of a bundle.

        Raises:
            NotJudgedError: the file holds an operator that the replay does not know.
            UsageError: the file is damaged, or M is beyond its RoPE table.
        """
        slots = max_sequence_length or manifest.max_sequence_length
        require_table_rows(slots, manifest.rope_table_rows, manifest.config.max_position_embeddings)
        read_graph(folder, manifest)  # refuses what is not this bundle's decoder
        check_artifact(folder, manifest, ONNX_FILE, verify)
        graph = ReplayGraph.load(folder / ONNX_FILE)
        dtype, last = manifest.precision.torch_dtype, manifest.last_logits_only
        return cls(graph, manifest.config, dtype, slots, last_logits_only=last)

    @property
    def fed(self) -> str:
        """The name of the graph's first input."""
        return self.graph.inputs[0]

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's key and value as of the last run, [B, K, M, H] each."""
        return self._past[2 * layer], self._past[2 * layer + 1]

    def _allocate(self, batch_size: int) -> None:
        self._past = empty_cache(self.config, batch_size, self.max_sequence_length, self.dtype)

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        layers = self.config.num_hidden_layers
        first = io_names.INPUTS_EMBEDS if self.headless else io_names.INPUT_IDS
        feeds = {
            first: inputs,
            io_names.POSITION_IDS: position_ids_BS,
            **dict(zip(io_names.past_names(layers), self._past, strict=True)),
        }
        outputs = self.graph.run(feeds, self.observer)
        for name, past in zip(io_names.present_names(layers), self._past, strict=True):
            require_shape(name, outputs[name].shape, past.shape, position_ids_BS)
        self._past = [outputs[name] for name in io_names.present_names(layers)]
        return outputs[io_names.HIDDEN_STATES if self.headless else io_names.LOGITS]


def open_bundle(wanted: Opening) -> ReplayDecoder:
    """The decoder of a bundle."""
    slots, verify = wanted.max_sequence_length, wanted.verify
    return ReplayDecoder.open(wanted.folder, wanted.manifest, max_sequence_length=slots, verify=verify)
