"""The residual block: two sublayers that read a copy of the stream and add to it.

Width never changes on the way: a position's vector is edited, not replaced. Normed is the copy, or what the sublayer
made of it, or both.
"""

from __future__ import annotations

import torch
from torch import nn

from blockexport.models.block.attention import Attention
from blockexport.models.block.layer_inputs import Step
from blockexport.models.block.mlp import SwiGLU
from blockexport.models.block.multipliers import scaled
from blockexport.models.block.norm import Norm
from blockexport.models.config.model_config import ModelConfig, NormPlace


class Block(nn.Module):
    """`h = x + Attention(Norm(x))`, `out = h + MLP(Norm(h))` where norms stand before the sublayers (`pre`).

    `post` is `h = x + Norm(Attention(x))` (OLMo 2, https://arxiv.org/abs/2501.00656) and `both` is
    `h = x + Norm(Attention(Norm(x)))` (Gemma 2, https://arxiv.org/abs/2408.00118), and so around the MLP.

    With a parallel residual `out = h + MLP(Norm(x))`, so that the two sublayers do not wait for each other (GPT-J and
    GPT-NeoX, https://arxiv.org/abs/2204.06745); the MLP has a norm of its own, or reads what attention reads.
    """

    attention_class: type[Attention] = Attention
    mlp_class: type[SwiGLU] = SwiGLU

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.norms, self.residual = config.layer_norms, config.residual
        self.residual_multiplier = config.residual_multiplier
        for name in self.norms.values():
            self.add_module(name, Norm(config, config.hidden_size))
        self.self_attn = self.attention_class(config, layer)
        self.mlp = self.mlp_class(config)

    def forward(
        self, x_TD: torch.Tensor, step: Step, past_key_BKMH: torch.Tensor, past_value_BKMH: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The stream [T, D] after the block (T = B * S), and the layer's key and value caches after the write."""
        attended_TD, key_BKMH, value_BKMH = self.self_attn(
            self.normed("attention_in", x_TD), step, past_key_BKMH, past_value_BKMH
        )
        return self.finish(x_TD, attended_TD), key_BKMH, value_BKMH

    def normed(self, place: NormPlace, x_TD: torch.Tensor) -> torch.Tensor:
        """`x_TD` after the norm at a place; as it is where none stands there."""
        if place not in self.norms:
            return x_TD
        out_TD: torch.Tensor = self.get_submodule(self.norms[place])(x_TD)
        return out_TD

    def finish(self, x_TD: torch.Tensor, attended_TD: torch.Tensor) -> torch.Tensor:
        """The stream [T, D] after the block, from the one before it and what attention made of that."""
        h_TD = self.add_attention(x_TD, attended_TD)
        return self.add_mlp(h_TD, self.mlp(self.mlp_input(x_TD, h_TD)))

    def add_attention(self, x_TD: torch.Tensor, attended_TD: torch.Tensor) -> torch.Tensor:
        """The stream between the two sublayers."""
        return x_TD + scaled(self.normed("attention_out", attended_TD), self.residual_multiplier)

    def mlp_input(self, x_TD: torch.Tensor, h_TD: torch.Tensor) -> torch.Tensor:
        """What the MLP reads, of the streams before and after attention."""
        if self.residual == "serial":
            return self.normed("mlp_in", h_TD)
        return self.normed("mlp_in" if self.residual == "parallel" else "attention_in", x_TD)

    def add_mlp(self, h_TD: torch.Tensor, made_TD: torch.Tensor) -> torch.Tensor:
        """The stream after the MLP, which made `made_TD`."""
        return h_TD + scaled(self.normed("mlp_out", made_TD), self.residual_multiplier)
