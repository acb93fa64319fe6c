"""What a defect is: a small, named change to the eager block, or to what surrounds the blocks.

Each is a subclass of one of the block's own parts, or an edit of its weights, so that a defect says nothing but what it
changes. `compare/explain/diagnose.py` runs the model with each and asks which one an artifact agrees with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from blockexport.compare.core.embeddings import embedding
from blockexport.models.block.attention import Attention
from blockexport.models.block.block import Block
from blockexport.models.block.layer_inputs import Step
from blockexport.models.block.mlp import SwiGLU
from blockexport.models.block.norm import Norm
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.interface import Ends

CacheKind = Literal["keys", "values"]
CACHE_KINDS: tuple[CacheKind, ...] = ("keys", "values")
CachePlace = tuple[int, CacheKind]
"""One of the caches: whose layer, and which of its two."""
CacheReads = Mapping[CachePlace, CachePlace | None]
"""For a cache that a layer does not take from itself, whose it takes as the call before left it; None: an empty one."""


class LayerBlock(Block):
    """A block that knows its model and its place in it.

    Attributes:
        config: the model.
        layer: its number.
        window: of this layer; None where it sees the whole prefix.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.config = config
        self.layer, self.window = layer, config.window_of(layer)


def block_with(*, attention: type[Attention] = Attention, mlp: type[SwiGLU] = SwiGLU) -> type[LayerBlock]:
    """A block with another class for one of its parts."""

    class WrongPart(LayerBlock):
        attention_class, mlp_class = attention, mlp

    return WrongPart


class StepBlock(LayerBlock):
    """A block whose positions, mask, write indices or RoPE table are changed before it runs."""

    def change(self, step: Step, slots: int) -> Step:
        """The step as the defect has it; `slots` is M."""
        raise NotImplementedError

    def forward(
        self, x_TD: torch.Tensor, step: Step, past_key_BKMH: torch.Tensor, past_value_BKMH: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `Block.forward`."""
        return super().forward(x_TD, self.change(step, past_key_BKMH.shape[2]), past_key_BKMH, past_value_BKMH)


def own_norm(norm: Norm) -> nn.Module:
    """The norm with nothing wrong."""
    return norm


def output_tensor(config: ModelConfig) -> str:
    """The checkpoint's tensor that the head reads."""
    return EMBEDDING if config.tie_word_embeddings else OUTPUT_HEAD


def no_edit(block: Block) -> None:
    """Leave a block's weights as they are."""


def own_config(config: ModelConfig) -> ModelConfig:
    """Embedding and logits are scaled as the model says."""
    return config


def own_positions(call: range) -> range:
    """Each token has the vector of its own position."""
    return call


def own_layer(layer: int) -> int:
    """Each layer computes with its own weights."""
    return layer


@dataclass(frozen=True)
class Defect:
    """One mistake.

    Attributes:
        name: short and stable, for programs: `rope_interleaved`.
        cause: for people, a sentence without its full stop.
        block: the block with the mistake in it.
        edit: what is done to a block of that class once its weights are there; it must replace and never write into
            them.
        weights_of: whose weights a layer computes with.
        norm: what stands in the place of the norm before the head, made from it.
        output: the tensor that the head reads.
        ends: the config by which embedding and logits are scaled.
        positions: of a call, those whose learned vectors its tokens get.
        reads: the caches that layers do not take from themselves. A model with such a defect runs call by call
            (`CachedPath.run_by_call`).
        pool: what is made of the states of a call in the place of their embedding [1, D].
        coarse: rounds on the way, so that noise takes a value over an edge now and then and moves the logits by far
            more than noise.
    """

    name: str
    cause: str
    block: type[LayerBlock] = LayerBlock
    edit: Callable[[Block], None] = no_edit
    weights_of: Callable[[int], int] = own_layer
    norm: Callable[[Norm], nn.Module] = own_norm
    output: Callable[[ModelConfig], str] = output_tensor
    ends: Callable[[ModelConfig], ModelConfig] = own_config
    positions: Callable[[range], range] = own_positions
    reads: CacheReads = field(default_factory=dict)
    pool: Callable[[torch.Tensor, Ends], torch.Tensor] = embedding
    coarse: bool = False

    @property
    def in_blocks(self) -> bool:
        """Whether it changes a block, so that it can be confined to some layers or to late calls."""
        return self.block is not LayerBlock or self.edit is not no_edit

    @property
    def reorders(self) -> bool:
        """Whether layers compute with other layers' weights."""
        return self.weights_of is not own_layer


NOTHING_WRONG = Defect("none", "nothing is wrong")
