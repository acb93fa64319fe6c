"""Grouped-query attention over a static cache: the only place where positions exchange information.

Ainslie et al. 2023, "GQA", https://arxiv.org/abs/2305.13245. Each key/value head serves N/K consecutive query heads.
The three parts (project, cache, attend) are separate methods: a reference without a cache uses the first and last.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from blockexport.models.cache import cache_write
from blockexport.models.config import ModelConfig
from blockexport.models.norm import RMSNorm
from blockexport.models.rope import rotary_embedding
from blockexport.models.step import Step


class Attention(nn.Module):
    """q, k, v projections, optional QK-norm, RoPE on q and k, scaled dot product, output projection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.head_dim
        self.heads, self.key_value_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            head_dim,
        )
        self.q_proj = nn.Linear(hidden, self.heads * head_dim, bias=config.qkv_bias)
        self.k_proj = nn.Linear(hidden, self.key_value_heads * head_dim, bias=config.qkv_bias)
        self.v_proj = nn.Linear(hidden, self.key_value_heads * head_dim, bias=config.qkv_bias)
        self.o_proj = nn.Linear(self.heads * head_dim, hidden, bias=config.o_bias)
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps) if config.qk_norm else None

    def project(
        self, x_TD: torch.Tensor, position_ids_BS: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [B, N, S, H], k and v [B, K, S, H] of the new tokens, q and k normed and turned, q scaled by 1/sqrt(H).

        The scale goes onto q here, before the cache is touched: TensorRT's parser would otherwise multiply q and the
        whole cached K by a half-precision square root of it.
        """
        batch, length = position_ids_BS.shape
        # View to (B, S, heads, H) and only then transpose: a direct view to (B, heads, S, H) has the right shape
        # and mixes positions with heads.
        q_BSNH = self.q_proj(x_TD).view(batch, length, self.heads, self.head_dim)
        k_BSKH = self.k_proj(x_TD).view(batch, length, self.key_value_heads, self.head_dim)
        v_BSKH = self.v_proj(x_TD).view(batch, length, self.key_value_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q_BSNH, k_BSKH = self.q_norm(q_BSNH), self.k_norm(k_BSKH)
        q_BNSH = rotary_embedding(q_BSNH.transpose(1, 2), cos, sin, position_ids_BS)
        k_BKSH = rotary_embedding(k_BSKH.transpose(1, 2), cos, sin, position_ids_BS)
        return q_BNSH * self.head_dim**-0.5, k_BKSH, v_BSKH.transpose(1, 2)

    def attend(
        self, q_BNSH: torch.Tensor, k_BKMH: torch.Tensor, v_BKMH: torch.Tensor, mask_B1SM: torch.Tensor
    ) -> torch.Tensor:
        """Softmax over the visible slots, mixed values, heads merged: [T, N*H]. A fused kernel stores no scores."""
        mixed_BNSH = F.scaled_dot_product_attention(
            q_BNSH, k_BKMH, v_BKMH, attn_mask=mask_B1SM, scale=1.0, enable_gqa=True
        )
        return mixed_BNSH.transpose(1, 2).reshape(-1, self.heads * self.head_dim)

    def forward(
        self, x_TD: torch.Tensor, step: Step, past_key_BKMH: torch.Tensor, past_value_BKMH: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Attention output [T, D] and the two updated caches."""
        q_BNSH, k_BKSH, v_BKSH = self.project(x_TD, step.position_ids_BS, step.cos, step.sin)
        key_BKMH = cache_write(past_key_BKMH, k_BKSH, step.write_indices_B)
        value_BKMH = cache_write(past_value_BKMH, v_BKSH, step.write_indices_B)
        mixed = self.attend(q_BNSH, key_BKMH, value_BKMH, step.mask_B1SM)
        return self.o_proj(mixed), key_BKMH, value_BKMH
