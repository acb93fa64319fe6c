"""Constants that scale a model's values, and the cap on its scores and logits; most models have none of them.

Multipliers: Yang & Hu 2021, "Tensor Programs V" (muP), https://arxiv.org/abs/2203.03466, as MiniCPM and Granite
have them.
Soft-capping, `cap * tanh(x / cap)`: Bello et al. 2016, https://arxiv.org/abs/1611.09940, as Gemma 2 uses it,
https://arxiv.org/abs/2408.00118.
"""

from __future__ import annotations

import torch

from blockexport.models.config.model_config import ModelConfig


def scaled(x: torch.Tensor, multiplier: float) -> torch.Tensor:
    """`x * multiplier`, and `x` itself where that is 1."""
    return x if multiplier == 1.0 else x * multiplier


def grown(q_BNSH: torch.Tensor, position_ids_BS: torch.Tensor, beta: float, length: int) -> torch.Tensor:
    """Queries [B, N, S, H] times `1 + beta * ln(1 + floor(position / length))`, which sharpens scores over long texts
    (Nakanishi 2025, https://arxiv.org/abs/2501.19399, in Llama 4's form). The factor is made in float32."""
    lengths_BS = (position_ids_BS // length).to(torch.float32)
    growth_BS = (lengths_BS + 1.0).log() * beta + 1.0
    return q_BNSH * growth_BS[:, None, :, None].to(q_BNSH.dtype)


def capped(x: torch.Tensor, cap: float | None) -> torch.Tensor:
    """`cap * tanh(x / cap)`: nearly `x` while that is small, and never beyond the cap."""
    return x if cap is None else (x / cap).tanh() * cap


def embedded(rows: torch.Tensor, config: ModelConfig, positions: torch.Tensor | None = None) -> torch.Tensor:
    """The stream that enters the first layer, from rows of the embedding [..., D], and rows of that of the positions
    where they are learned (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.5; GPT-2)."""
    rows = scaled(rows, config.embedding_multiplier)
    return rows if positions is None else rows + positions


def finished(logits: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """The logits [..., V], from the head's products."""
    return capped(scaled(logits, config.logits_multiplier), config.final_logit_softcapping)
