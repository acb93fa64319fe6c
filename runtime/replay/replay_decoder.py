"""A bundle's ONNX file behind the Decoder interface, replayed in torch: the backend called `replay`."""

from __future__ import annotations

import torch

from blockexport.export.bundle.check_graph import read_graph
from blockexport.export.bundle.file_check import check_artifact
from blockexport.models import io_names
from blockexport.models.block.rope import require_table_rows
from blockexport.models.interface import Interface
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
        interface: see `Decoder`.
    """

    def __init__(self, graph: ReplayGraph, interface: Interface) -> None:
        self.graph = graph
        self.interface = interface
        self.observer: Observer | None = None
        self.reset()

    @property
    def fed(self) -> str:
        """The name of the graph's first input."""
        return self.graph.inputs[0]

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        layers = self.config.num_hidden_layers
        feeds = {
            self.interface.input_name: inputs,
            io_names.POSITION_IDS: position_ids_BS,
            **dict(zip(io_names.past_names(layers), self._past, strict=True)),
        }
        outputs = self.graph.run(feeds, self.observer)
        for name, past in zip(io_names.present_names(layers), self._past, strict=True):
            require_shape(name, outputs[name].shape, past.shape, position_ids_BS)
        self._past = [outputs[name] for name in io_names.present_names(layers)]
        return outputs[self.interface.output_name]


def open_bundle(wanted: Opening) -> ReplayDecoder:
    """The decoder of a bundle.

    Raises:
        NotJudgedError: the file holds an operator that the replay does not know.
        UsageError: the file is damaged, or M is beyond its RoPE table.
    """
    folder, manifest, interface = wanted.folder, wanted.manifest, wanted.interface
    require_table_rows(interface.max_sequence_length, manifest.rope_table_rows, manifest.config)
    read_graph(folder, manifest, wanted.graph)  # refuses what is not this bundle's decoder
    check_artifact(folder, manifest, wanted.graph, wanted.verify)
    return ReplayDecoder(ReplayGraph.load(folder / wanted.graph), interface)
