"""The feed-forward half of a block: a gated MLP, which works on each position alone and holds most of the parameters.

Shazeer 2020, "GLU Variants Improve Transformer", https://arxiv.org/abs/2002.05202: SwiGLU with SiLU, GeGLU with GELU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from blockexport.models.block.unset_weights import Linear
from blockexport.models.config.model_config import HiddenAct, ModelConfig


def _squared_relu(x: torch.Tensor) -> torch.Tensor:
    """So et al. 2021, "Primer", https://arxiv.org/abs/2109.08668."""
    positive = F.relu(x)
    return positive * positive


ACTIVATIONS: dict[HiddenAct, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu2": _squared_relu,
}


class SwiGLU(nn.Module):
    """`down_proj(act(gate_proj(x)) * up_proj(x))`, D -> F -> D; without a gate `down_proj(act(up_proj(x)))`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, intermediate, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.act = ACTIVATIONS[config.hidden_act]
        self.gate_proj = Linear(hidden, intermediate, bias=bias) if config.gated_mlp else None
        self.up_proj = Linear(hidden, intermediate, bias=bias)
        self.down_proj = Linear(intermediate, hidden, bias=bias)

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        """[T, D] to [T, D]."""
        gate_TF = None if self.gate_proj is None else self.gate_proj(x_TD)
        out_TD: torch.Tensor = self.down_proj(self.activated(gate_TF, self.up_proj(x_TD)))
        return out_TD

    def activated(self, gate_TF: torch.Tensor | None, up_TF: torch.Tensor) -> torch.Tensor:
        """What goes into the down projection, of what the others gave."""
        return self.act(up_TF) if gate_TF is None else self.act(gate_TF) * up_TF
