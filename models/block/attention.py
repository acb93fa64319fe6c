"""Grouped-query attention over a static cache: the only place where positions exchange information.

Ainslie et al. 2023, "GQA", https://arxiv.org/abs/2305.13245. Each key/value head serves N/K consecutive query heads.
The three parts (project, cache, attend) are separate methods: a reference without a cache uses the first and last.
"""

from __future__ import annotations

import torch
from torch import library, nn
from torch.nn import functional as F

from blockexport.models.block.cache import cache_write
from blockexport.models.block.layer_inputs import Step
from blockexport.models.block.multipliers import capped, grown
from blockexport.models.block.norm import Norm
from blockexport.models.block.rope import rotary_embedding
from blockexport.models.block.unset_weights import Linear
from blockexport.models.config.model_config import ModelConfig


def _capped_attention(
    q_BNSH: torch.Tensor, k_BKMH: torch.Tensor, v_BKMH: torch.Tensor, mask_B1SM: torch.Tensor, softcap: float
) -> torch.Tensor:
    repeats = q_BNSH.shape[1] // k_BKMH.shape[1]
    key_BNMH, value_BNMH = (x.repeat_interleave(repeats, dim=1) for x in (k_BKMH, v_BKMH))
    # In half precision scores and softmax are taken in float32, as fused kernels take them.
    wide = torch.promote_types(q_BNSH.dtype, torch.float32)
    scores_BNSM = capped(q_BNSH.to(wide) @ key_BNMH.to(wide).transpose(-1, -2), softcap)
    weights_BNSM = scores_BNSM.masked_fill(~mask_B1SM, -torch.inf).softmax(-1)
    # A query that sees no slot gets zeros, as from the fused kernel.
    seen_B1S1 = mask_B1SM.any(-1, keepdim=True)
    return (weights_BNSM.masked_fill(~seen_B1S1, 0).to(v_BKMH.dtype) @ value_BNMH).to(q_BNSH.dtype)


# An operator of its own, because PyTorch's fused attention has no cap: it becomes one ONNX Attention.
_library = library.Library("blockexport", "FRAGMENT")
_library.define("capped_attention(Tensor query, Tensor key, Tensor value, Tensor mask, float softcap) -> Tensor")
_library.impl("capped_attention", _capped_attention, "CompositeImplicitAutograd")


def capped_attention(
    q_BNSH: torch.Tensor, k_BKMH: torch.Tensor, v_BKMH: torch.Tensor, mask_B1SM: torch.Tensor, softcap: float
) -> torch.Tensor:
    """Attention [B, N, S, H] whose scores are capped before the mask: `softmax(cap * tanh(q k' / cap)) v`."""
    out: torch.Tensor = torch.ops.blockexport.capped_attention(q_BNSH, k_BKMH, v_BKMH, mask_B1SM, softcap)
    return out


class Attention(nn.Module):
    """q, k, v projections, optional QK-norm, RoPE on q and k in most layers, scaled dot product, output projection.

    Each step is a method, so that `compare/` can change one of them and ask what a file with that mistake would say.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.has_rope, self.interleaved = config.has_rope(layer), config.rope_interleaved
        hidden, head_dim = config.hidden_size, config.head_dim
        self.heads, self.key_value_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            head_dim,
        )
        self.q_proj = Linear(hidden, self.heads * head_dim, bias=config.qkv_bias)
        self.k_proj = Linear(hidden, self.key_value_heads * head_dim, bias=config.qkv_bias)
        self.v_proj = Linear(hidden, self.key_value_heads * head_dim, bias=config.qkv_bias)
        self.o_proj = Linear(self.heads * head_dim, hidden, bias=config.o_bias)
        self.query_scale, self.softcap = config.score_scale, config.attn_logit_softcapping
        self.growth, self.growth_length = config.query_growth, config.query_growth_length
        self.norm_over, self.norm_late = config.qk_norm_over, config.qk_norm_after_rope
        queries, keys = config.qk_norm_sizes
        self.q_norm = Norm(config, queries) if config.qk_norm else None
        self.k_norm = Norm(config, keys) if config.qk_norm else None

    def project(
        self, x_TD: torch.Tensor, position_ids_BS: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [B, N, S, H], k and v [B, K, S, H] of the new tokens, q and k normed and turned in either order, q scaled.

        The scale goes onto q here, before the cache is touched: TensorRT's parser would otherwise multiply q and the
        whole cached K by a half-precision square root of it.
        """
        q_BNSH = self.split(self.q_proj(x_TD), self.heads, self.q_norm, position_ids_BS)
        k_BKSH = self.split(self.k_proj(x_TD), self.key_value_heads, self.k_norm, position_ids_BS)
        v_BKSH = self.split(self.v_proj(x_TD), self.key_value_heads, None, position_ids_BS)
        q_BNSH = self.normed_late(self.turn(q_BNSH, position_ids_BS, cos, sin), self.q_norm)
        k_BKSH = self.normed_late(self.turn(k_BKSH, position_ids_BS, cos, sin), self.k_norm)
        return self.scaled_queries(q_BNSH, position_ids_BS), k_BKSH, v_BKSH

    def split(self, x_TE: torch.Tensor, heads: int, norm: Norm | None, position_ids_BS: torch.Tensor) -> torch.Tensor:
        """A projection [T, heads * H] as [B, heads, S, H], normed on the way where a norm is to come before RoPE: each
        head by itself (Henry et al. 2020, https://arxiv.org/abs/2010.04245), or the projection as a whole (OLMo 2)."""
        batch, length = position_ids_BS.shape
        norm = None if self.norm_late else norm
        if norm is not None and self.norm_over == "projection":
            x_TE, norm = norm(x_TE), None
        # View to (B, S, heads, H) and only then transpose: a direct view to (B, heads, S, H) has the right shape
        # and mixes positions with heads.
        x_BSNH = x_TE.view(batch, length, heads, self.head_dim)
        return (x_BSNH if norm is None else norm(x_BSNH)).transpose(1, 2)

    def turn(
        self, x_BNSH: torch.Tensor, position_ids_BS: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Heads [B, heads, S, H] turned, in a layer with RoPE."""
        return self.rotate(x_BNSH, position_ids_BS, cos, sin) if self.has_rope else x_BNSH

    def normed_late(self, x_BNSH: torch.Tensor, norm: Norm | None) -> torch.Tensor:
        """Heads [B, heads, S, H] that were turned, each normed by itself where the norm comes after RoPE."""
        return norm(x_BNSH) if norm is not None and self.norm_late else x_BNSH

    def scaled_queries(self, q_BNSH: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        """Queries times the factor of the scores, and times that of their position in a model that has one."""
        if self.growth is not None and self.growth_length is not None:
            q_BNSH = grown(q_BNSH, position_ids_BS, self.growth, self.growth_length)
        return q_BNSH * self.query_scale

    def rotate(
        self, x_BNSH: torch.Tensor, position_ids_BS: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """RoPE on heads [B, heads, S, H]."""
        return rotary_embedding(x_BNSH, cos, sin, position_ids_BS, interleaved=self.interleaved)

    def write(self, past_BKMH: torch.Tensor, update_BKSH: torch.Tensor, step: Step) -> torch.Tensor:
        """The cache after the new tokens' entries went to their slots."""
        return cache_write(past_BKMH, update_BKSH, step.write_indices_B)

    def attend(
        self, q_BNSH: torch.Tensor, k_BKMH: torch.Tensor, v_BKMH: torch.Tensor, mask_B1SM: torch.Tensor
    ) -> torch.Tensor:
        """Softmax over the visible slots, mixed values, heads merged: [T, N*H]. A fused kernel stores no scores."""
        if self.softcap is not None:
            mixed_BNSH = capped_attention(q_BNSH, k_BKMH, v_BKMH, mask_B1SM, self.softcap)
        else:
            mixed_BNSH = F.scaled_dot_product_attention(
                q_BNSH, k_BKMH, v_BKMH, attn_mask=mask_B1SM, scale=1.0, enable_gqa=True
            )
        return mixed_BNSH.transpose(1, 2).reshape(-1, self.heads * self.head_dim)

    def forward(
        self, x_TD: torch.Tensor, step: Step, past_key_BKMH: torch.Tensor, past_value_BKMH: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Attention output [T, D] and the two updated caches."""
        q_BNSH, k_BKSH, v_BKSH = self.project(x_TD, step.position_ids_BS, step.cos, step.sin)
        key_BKMH = self.write(past_key_BKMH, k_BKSH, step)
        value_BKMH = self.write(past_value_BKMH, v_BKSH, step)
        mixed = self.attend(q_BNSH, key_BKMH, value_BKMH, step.mask_B1SM)
        return self.o_proj(mixed), key_BKMH, value_BKMH
