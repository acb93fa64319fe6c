"""Defects of how heads are made, scored, mixed and joined again."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from blockexport.compare.core.defect import Defect, block_with
from blockexport.models.block.attention import Attention
from blockexport.models.block.block import Block
from blockexport.models.block.multipliers import capped
from blockexport.models.block.norm import Norm
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.wording import told_apart


def attention_defects(config: ModelConfig) -> list[Defect]:
    """Those that the config has a place for."""
    found = [
        Defect(
            "heads_viewed",
            "q, k and v are viewed as (B, heads, S, H) where a transpose belongs, which mixes positions and heads",
            block_with(attention=_Viewed),
        ),
        Defect(
            "merge_viewed",
            "attention's heads are joined by a view without the transpose",
            block_with(attention=_MergeViewed),
        ),
        *_scale_defects(config),
        Defect("softmax_half", "softmax is taken in half precision", block_with(attention=_HalfSoftmax), coarse=True),
        Defect("k_v_swapped", "the weights of k_proj and v_proj are swapped", edit=_swap_k_v),
    ]
    if 1 < config.num_key_value_heads < config.num_attention_heads:
        cause = "K/V heads are tiled (0, 1, 0, 1) instead of repeated (0, 0, 1, 1) for the query heads"
        found.append(Defect("heads_tiled", cause, block_with(attention=_Tiled)))
    if config.qk_norm:
        found += [Defect("qk_norm_dropped", "QK-norm is dropped", edit=_drop_qk_norm), _qk_norm_defect(config)]
    return found + _bias_defects(config)


def _qk_norm_defect(config: ModelConfig) -> Defect:
    if config.qk_norm_over == "projection":
        by_head = "QK-norm takes each head by itself instead of the whole projection"
        return Defect("qk_norm_by_head", by_head, block_with(attention=_ByHead))
    if config.qk_norm_after_rope:
        return Defect("qk_norm_before_rope", "QK-norm comes before RoPE instead of after it", edit=_norm_elsewhere)
    return Defect("qk_norm_after_rope", "QK-norm comes after RoPE instead of before it", edit=_norm_elsewhere)


def _norm_elsewhere(block: Block) -> None:
    block.self_attn.norm_late = not block.self_attn.norm_late


def _scale_defects(config: ModelConfig) -> list[Defect]:
    """Scores without their factor, with its square, or with that of other models, and without their cap."""
    own, found = config.score_scale, list[Defect]()
    if config.query_scale is None:
        found += [
            Defect("scale_missing", "attention scores lack their 1/sqrt(H)", edit=_scaled(0)),
            Defect("scale_twice", "attention scores are divided by sqrt(H) twice", edit=_scaled(2)),
        ]
    elif own != 1.0:
        found += [
            Defect("scale_missing", f"attention scores lack their factor {own:g}", edit=_scaled(0)),
            Defect("scale_twice", f"attention scores are multiplied by {own:g} twice", edit=_scaled(2)),
        ]
    usual = config.head_dim**-0.5
    if not math.isclose(own, usual):
        cause = f"attention scores are divided by sqrt(H), and should be multiplied by {own:g}"
        found.append(Defect("scale_usual", cause, edit=_scaled(0, usual)))
    if config.query_growth is not None:
        cause = "queries are not multiplied by the factor of their position"
        found.append(Defect("query_growth_dropped", cause, edit=_drop_growth))
    if config.attn_logit_softcapping is not None:
        cause = f"attention scores are not capped at {config.attn_logit_softcapping:g}"
        found.append(Defect("attention_softcap_dropped", cause, edit=_drop_softcap))
    return found


def _drop_growth(block: Block) -> None:
    block.self_attn.growth = None


def _drop_softcap(block: Block) -> None:
    block.self_attn.softcap = None


def scaled_by(times: float) -> Defect:
    """Scores that are some factor too large, as it was measured."""
    said = f"attention scores are {told_apart(times, 1.0)[0]} times too large"
    return Defect("scale_times", said, edit=_scaled(1, times))


def is_scale(config: ModelConfig, times: float) -> bool:
    """Whether a factor is that of a defect of the scale which is tried anyway, as near as half precision tells."""
    own = config.score_scale
    return any(math.isclose(times, other / own, rel_tol=0.01) for other in (1.0, own**2, config.head_dim**-0.5))


def _bias_defects(config: ModelConfig) -> list[Defect]:
    present = [f"self_attn.{name}_proj" for name in "qkv" if config.qkv_bias]
    present += ["self_attn.o_proj"] if config.o_bias else []
    present += (
        [f"mlp.{name}_proj" for name in ("gate", "up", "down")[not config.gated_mlp :]] if config.mlp_bias else []
    )
    found = [
        Defect(f"{path.rpartition('.')[2]}_bias_dropped", f"the bias of {path} is dropped", edit=_drop_bias(path))
        for path in present
    ]
    if config.qkv_bias:
        dropped = [_drop_bias(f"self_attn.{name}_proj") for name in "qkv"]

        def drop_all(block: Block) -> None:
            for drop in dropped:
                drop(block)

        found.append(Defect("qkv_bias_dropped", "the biases of q_proj, k_proj and v_proj are dropped", edit=drop_all))
    return found


def _drop_bias(path: str) -> Callable[[Block], None]:
    def drop(block: Block) -> None:
        linear = block.get_submodule(path)
        assert isinstance(linear, nn.Linear)
        linear.register_parameter("bias", None)

    return drop


def _drop_qk_norm(block: Block) -> None:
    block.self_attn.q_norm = block.self_attn.k_norm = None


def _swap_k_v(block: Block) -> None:
    attention = block.self_attn
    attention.k_proj, attention.v_proj = attention.v_proj, attention.k_proj


def _scaled(power: int, times: float = 1.0) -> Callable[[Block], None]:
    def edit(block: Block) -> None:
        block.self_attn.query_scale = times * block.self_attn.query_scale**power

    return edit


class _Viewed(Attention):
    def split(self, x_TE: torch.Tensor, heads: int, norm: Norm | None, position_ids_BS: torch.Tensor) -> torch.Tensor:
        batch, length = position_ids_BS.shape
        norm = None if self.norm_late else norm
        if norm is not None and self.norm_over == "projection":
            x_TE, norm = norm(x_TE), None
        x_BNSH = x_TE.view(batch, heads, length, self.head_dim)
        return x_BNSH if norm is None else norm(x_BNSH)


class _ByHead(Attention):
    def split(self, x_TE: torch.Tensor, heads: int, norm: Norm | None, position_ids_BS: torch.Tensor) -> torch.Tensor:
        if norm is None:
            return super().split(x_TE, heads, norm, position_ids_BS)
        x_TNH = x_TE.view(-1, heads, self.head_dim)
        root_TN1 = (x_TNH.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        assert norm.weight is not None
        gained_TE = (x_TNH / root_TN1).reshape(x_TE.shape) * norm.weight
        return super().split(gained_TE, heads, None, position_ids_BS)


class _MergeViewed(Attention):
    def attend(
        self, q_BNSH: torch.Tensor, k_BKMH: torch.Tensor, v_BKMH: torch.Tensor, mask_B1SM: torch.Tensor
    ) -> torch.Tensor:
        merged = super().attend(q_BNSH, k_BKMH, v_BKMH, mask_B1SM)
        batch, heads, length, head_dim = q_BNSH.shape
        mixed_BNSH = merged.view(batch, length, heads, head_dim).transpose(1, 2)
        return mixed_BNSH.reshape(-1, heads * head_dim)


class _Tiled(Attention):
    def attend(
        self, q_BNSH: torch.Tensor, k_BKMH: torch.Tensor, v_BKMH: torch.Tensor, mask_B1SM: torch.Tensor
    ) -> torch.Tensor:
        repeats = self.heads // self.key_value_heads
        key, value = (x.repeat(1, repeats, 1, 1) for x in (k_BKMH, v_BKMH))
        return super().attend(q_BNSH, key, value, mask_B1SM)


class _HalfSoftmax(Attention):
    def attend(
        self, q_BNSH: torch.Tensor, k_BKMH: torch.Tensor, v_BKMH: torch.Tensor, mask_B1SM: torch.Tensor
    ) -> torch.Tensor:
        repeats = self.heads // self.key_value_heads
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (k_BKMH, v_BKMH))
        scores = capped(q_BNSH @ key.transpose(-1, -2), self.softcap).half().masked_fill(~mask_B1SM, -torch.inf)
        mixed_BNSH = scores.softmax(-1).nan_to_num(0).to(value.dtype) @ value
        return mixed_BNSH.transpose(1, 2).reshape(-1, self.heads * self.head_dim)
