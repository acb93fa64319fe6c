"""A model's weights as the judge computes with them: one layer's in memory at a time, and of the head some rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from blockexport.compare.core.defect import LayerBlock
from blockexport.models.block.norm import Norm
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import load_final_norm, load_part
from blockexport.models.checkpoints.tensor_names import OUTPUT_BIAS
from blockexport.models.config.model_config import ModelConfig

VOCAB_BLOCK = 8192  # rows of the output projection widened at a time


def widened(weight: torch.Tensor, dtype: torch.dtype, rounded_to: torch.dtype | None = None) -> torch.Tensor:
    """A weight in `dtype`, with the values that it has once rounded to another type."""
    return (weight if rounded_to is None else weight.to(rounded_to)).to(dtype)


def make_block(
    checkpoint: Checkpoint,
    layer: int,
    dtype: torch.dtype,
    *,
    weights_of: int | None = None,
    rounded_to: torch.dtype | None = None,
) -> LayerBlock:
    """A layer with its weights in `dtype`, or with those of another layer."""
    prefix = f"model.layers.{layer if weights_of is None else weights_of}."
    read = _reader(checkpoint, dtype, rounded_to)
    return load_part(lambda: LayerBlock(checkpoint.config, layer), prefix, read)


def make_final_norm(checkpoint: Checkpoint, dtype: torch.dtype, rounded_to: torch.dtype | None = None) -> Norm:
    """The norm before the head, with its weights in `dtype`."""
    return load_final_norm(checkpoint, _reader(checkpoint, dtype, rounded_to))


def _reader(
    checkpoint: Checkpoint, dtype: torch.dtype, rounded_to: torch.dtype | None
) -> Callable[[str], torch.Tensor]:
    return lambda name: widened(checkpoint.read(name), dtype, rounded_to)


def project(
    head_VD: torch.Tensor, normed: Sequence[torch.Tensor], rounded_to: torch.dtype | None = None
) -> list[torch.Tensor]:
    """The logits [S, V] of several tensors [S, D], in their type."""
    logits = [x_SD.new_empty(x_SD.shape[0], head_VD.shape[0]) for x_SD in normed]
    for start in range(0, head_VD.shape[0], VOCAB_BLOCK):
        rows_VD = widened(head_VD[start : start + VOCAB_BLOCK], normed[0].dtype, rounded_to)
        for x_SD, out in zip(normed, logits, strict=True):
            out[:, start : start + VOCAB_BLOCK] = F.linear(x_SD, rows_VD)
    return logits


def with_head_bias(
    products: Sequence[torch.Tensor],
    checkpoint: Checkpoint,
    config: ModelConfig,
    rounded_to: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """What `project` made, with the bias of the head where `config` says that there is one."""
    if not config.head_bias:
        return list(products)
    bias_V = checkpoint.read(OUTPUT_BIAS)
    return [product + widened(bias_V, product.dtype, rounded_to) for product in products]
