"""RMSNorm: scale a position's vector by the reciprocal of its root mean square, then by a learned gain.

Zhang & Sennrich 2019, "Root Mean Square Layer Normalization", https://arxiv.org/abs/1910.07467
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis.

    `F.rms_norm` accumulates in float32 or in the input's own type, whichever is wider: half precision would overflow
    (a residual stream can reach tens of thousands), and float64 must stay float64 for the reference.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` is [..., size]; the result has its shape and type."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
