"""The pre-norm residual block: two sublayers that read a normed copy of the stream and add to it.

Width never changes on the way: a position's vector is edited, not replaced.
"""

from __future__ import annotations

import torch
from torch import nn

from blockexport.models.block.attention import Attention
from blockexport.models.block.layer_inputs import Step
from blockexport.models.block.mlp import SwiGLU
from blockexport.models.block.norm import Norm
from blockexport.models.config.model_config import ModelConfig


class Block(nn.Module):
    """`h = x + Attention(Norm(x))`, `out = h + MLP(Norm(h))`."""

    attention_class: type[Attention] = Attention
    mlp_class: type[SwiGLU] = SwiGLU

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = Norm(config, config.hidden_size)
        self.self_attn = self.attention_class(config, layer)
        self.post_attention_layernorm = Norm(config, config.hidden_size)
        self.mlp = self.mlp_class(config)

    def forward(
        self, x_TD: torch.Tensor, step: Step, past_key_BKMH: torch.Tensor, past_value_BKMH: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The stream [T, D] after the block (T = B * S), and the layer's key and value caches after the write."""
        attended_TD, key_BKMH, value_BKMH = self.self_attn(
            self.input_layernorm(x_TD), step, past_key_BKMH, past_value_BKMH
        )
        return self.finish(x_TD, attended_TD), key_BKMH, value_BKMH

    def finish(self, x_TD: torch.Tensor, attended_TD: torch.Tensor) -> torch.Tensor:
        """The stream [T, D] after the block, from the one before it and what attention made of that."""
        h_TD = self.add_attention(x_TD, attended_TD)
        return self.add_mlp(h_TD, self.mlp(self.mlp_input(x_TD, h_TD)))

    def add_attention(self, x_TD: torch.Tensor, attended_TD: torch.Tensor) -> torch.Tensor:
        """The stream between the two sublayers."""
        return x_TD + attended_TD

    def mlp_input(self, x_TD: torch.Tensor, h_TD: torch.Tensor) -> torch.Tensor:
        """What the MLP reads, of the streams before and after attention."""
        normed_TD: torch.Tensor = self.post_attention_layernorm(h_TD)
        return normed_TD

    def add_mlp(self, h_TD: torch.Tensor, made_TD: torch.Tensor) -> torch.Tensor:
        """The stream after the MLP, which made `made_TD`."""
        return h_TD + made_TD
