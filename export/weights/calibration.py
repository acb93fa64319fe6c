"""What enters the matrices of a model on a text, layer by layer: which of its inputs are large, and which go together.

One eager run of the unquantised model in float32, with one layer's weights in memory at a time. The run goes on when
the next layer is asked for, so that its matrices are quantised, and their file is written, in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import nn

from blockexport.models.block.block import Block
from blockexport.models.block.cache import visible_slots
from blockexport.models.block.layer_inputs import Step
from blockexport.models.block.rope import rope_table
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import Entrance, load_final_norm, load_part
from blockexport.models.checkpoints.tensor_names import OUTPUT_HEAD
from blockexport.models.checkpoints.weight_values import convert

WINDOW = 512  # tokens that are run with one another as context

_SHARED = {"k_proj": "q_proj", "v_proj": "q_proj", "gate_proj": "up_proj"}
"""Projections that read what another one reads."""


class Calibration:
    """The run of a checkpoint over a text, for `export_onnx`.

    Args:
        checkpoint: the weights before they are quantised.
        ids_S: int64, the text.
    """

    def __init__(self, checkpoint: Checkpoint, ids_S: torch.Tensor) -> None:
        self._checkpoint = checkpoint
        self._ids_S = ids_S
        self._streams: list[torch.Tensor] = []
        self._next = 0
        self._window = WINDOW if checkpoint.config.bound is None else min(WINDOW, checkpoint.config.reach)
        self._products: dict[str, torch.Tensor] = {}

    @property
    def digest(self) -> str:
        """Hex sha256 of the token ids, as little-endian int64."""
        return hashlib.sha256(self._ids_S.numpy().astype("<i8").tobytes()).hexdigest()

    def products(self, name: str) -> torch.Tensor:
        """Of the inputs X [T, K] of a matrix on the text the mean products X^T X / T: float32 [K, K].

        Args:
            name: of a projection or of the output head. Layers have to be asked for in order.

        Raises:
            UsageError: a weight is not finite.
        """
        if name == OUTPUT_HEAD:
            return self._of_head()
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        while self._next <= int(layer):
            self._run_layer()
        module = rest.removesuffix(".weight")
        parent, _, own = module.rpartition(".")
        return self._products[f"{parent}.{_SHARED.get(own, own)}"]

    @torch.inference_mode()
    def _run_layer(self) -> None:
        if not self._streams:
            entrance, parts = Entrance(self._checkpoint), self._ids_S.split(self._window)
            self._streams = [entrance.stream(ids, torch.arange(len(ids)), torch.Tensor.float) for ids in parts]
        config, layer = self._checkpoint.config, self._next
        block = self._block(layer)
        sums: dict[str, torch.Tensor] = {}
        for name, module in block.named_modules():
            if isinstance(module, nn.Linear) and name.rpartition(".")[2] not in _SHARED:
                module.register_forward_pre_hook(_adding(sums, name))
        cos, sin = rope_table(config.rope_of(layer), self._window)
        for number, x_TD in enumerate(self._streams):
            positions_1S = torch.arange(len(x_TD))[None]
            mask = visible_slots(positions_1S, positions_1S[0], config.window_of(layer))
            empty = torch.zeros(1, config.num_key_value_heads, len(x_TD), config.head_dim)
            step = Step(positions_1S, positions_1S[:, 0], mask, cos, sin)
            self._streams[number] = block(x_TD, step, empty, empty)[0]
        self._products = {name: total.div_(len(self._ids_S)) for name, total in sums.items()}
        self._next += 1

    def _block(self, layer: int) -> Block:
        return load_part(lambda: Block(self._checkpoint.config, layer), f"model.layers.{layer}.", self._read)

    def _read(self, name: str) -> torch.Tensor:
        return convert(name, self._checkpoint.read(name), torch.float32)[0]

    @torch.inference_mode()
    def _of_head(self) -> torch.Tensor:
        config = self._checkpoint.config
        while self._next < config.num_hidden_layers:
            self._run_layer()
        x_TD: torch.Tensor = load_final_norm(self._checkpoint, self._read)(torch.cat(self._streams))
        return x_TD.T @ x_TD / len(x_TD)


def _adding(sums: dict[str, torch.Tensor], name: str) -> Callable[..., None]:
    """A hook that adds the products of a module's inputs to `sums[name]`."""

    def add(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        x_TK = inputs[0]
        if name not in sums:
            sums[name] = x_TK.new_zeros(x_TK.shape[1], x_TK.shape[1])
        sums[name].addmm_(x_TK.T, x_TK)

    return add
