"""The norms: a position's vector brought to one size, then scaled by a learned gain.

RMSNorm: Zhang & Sennrich 2019, "Root Mean Square Layer Normalization", https://arxiv.org/abs/1910.07467
LayerNorm: Ba et al. 2016, "Layer Normalization", https://arxiv.org/abs/1607.06450
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from blockexport.models.config.model_config import ModelConfig


class Norm(nn.Module):
    """Over the last axis `x / sqrt(mean(x^2) + eps) * weight`, or as LayerNorm, which takes the mean off first,
    `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`; with the gain and the bias that the config says there are, and
    a gain of `1 + weight` where it says so (Gemma, https://arxiv.org/abs/2403.08295), which decays to 1 and not to 0.

    Both accumulate in float32 or in the input's own type, whichever is wider: half precision would overflow (a residual
    stream can reach tens of thousands), and float64 must stay float64 for the reference.
    """

    def __init__(self, config: ModelConfig, size: int) -> None:
        super().__init__()
        self.shape, self.eps, self.is_layer_norm = (size,), config.rms_norm_eps, config.norm == "layer_norm"
        self.gain_offset = config.norm_gain_offset
        self.weight = nn.Parameter(torch.ones(size)) if config.norm_weight else None
        self.bias = nn.Parameter(torch.zeros(size)) if config.norm_bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` is [..., size]; the result has its shape and type."""
        gain = self.weight + 1.0 if self.weight is not None and self.gain_offset else self.weight
        if self.is_layer_norm:
            return F.layer_norm(x, self.shape, gain, self.bias, self.eps)
        return F.rms_norm(x, self.shape, gain, self.eps)
