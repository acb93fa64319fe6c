"""A checkpoint's weights in the plain PyTorch decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.block.multipliers import embedded
from blockexport.models.block.norm import Norm
from blockexport.models.block.rope import rope_table_rows
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING, POSITIONS, expected_tensors
from blockexport.models.checkpoints.weight_values import TensorLoss, check_no_overflow, convert
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.interface import Ends
from blockexport.models.progress import Progress, silent

Module = TypeVar("Module", bound=nn.Module)


def load_part(make: Callable[[], Module], prefix: str, read: Callable[[str], torch.Tensor]) -> Module:
    """A part of the decoder, made without memory, with the tensors that `read` gives for its names after `prefix`."""
    with torch.device("meta"):
        module = make()
    module.load_state_dict({name: read(prefix + name) for name in module.state_dict()}, assign=True)
    return module.requires_grad_(False).eval()


class Entrance:
    """The tables that the stream begins with, of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._config = checkpoint.config
        self._table_VD = checkpoint.read(EMBEDDING)
        self._learned_MD = checkpoint.read(POSITIONS) if checkpoint.config.learned_positions else None

    def stream(
        self,
        ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        convert: Callable[[torch.Tensor], torch.Tensor],
        config: ModelConfig | None = None,
    ) -> torch.Tensor:
        """The stream [T, D] that enters the first layer.

        Args:
            ids_T: int64, the tokens.
            positions_T: int64, where they stand; read where positions are learned.
            convert: rows of a table into the type of the stream.
            config: the checkpoint's own unless given.
        """
        config = config or self._config
        learned = self._learned_MD if config.learned_positions else None
        learned_TD = None if learned is None else convert(learned[positions_T])
        return embedded(convert(self._table_VD[ids_T]), config, learned_TD)


def load_final_norm(checkpoint: Checkpoint, read: Callable[[str], torch.Tensor]) -> Norm:
    """The norm before the head, with the tensors that `read` gives."""
    config = checkpoint.config
    return load_part(lambda: Norm(config, config.hidden_size), "model.norm.", read)


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    max_sequence_length: int,
    *,
    ends: Ends = Ends.LOGITS,
    progress: Progress = silent,
) -> DecoderModel:
    """The decoder with the checkpoint's weights in `dtype`, on the CPU, ready for inference.

    No memory is spent on weights that are about to be replaced (see `block/unset_weights.py`), and none on a copy where
    the file's type is `dtype`: the parameters then map the file's pages.

    Args:
        checkpoint: where the weights come from.
        dtype: of parameters and activations; the RoPE table stays in float32.
        max_sequence_length: M, which the RoPE table must cover.
        ends: see `DecoderModel`.
        progress: called per tensor.

    Raises:
        UsageError: a weight is not finite, or overflows in `dtype`.
    """
    config = checkpoint.config
    rows = rope_table_rows(config, max_sequence_length)
    model = DecoderModel(config, rows, ends)
    model.requires_grad_(False)
    names = expected_tensors(config, ends)
    state: dict[str, torch.Tensor] = {}
    losses: list[TensorLoss] = []
    for done, name in enumerate(names, start=1):
        state[name], loss = convert(name, checkpoint.read(name), dtype)
        losses.append(loss)
        progress("loading weights", done, len(names))
    check_no_overflow(losses, dtype)
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval()
