"""The catalogue: every defect that Diagnose tries, and a short title of each for lists of many."""

from __future__ import annotations

from blockexport.compare.core.defect import Defect
from blockexport.compare.explain.defects_attention import attention_defects, is_scale, scaled_by
from blockexport.compare.explain.defects_block import (
    head_defects,
    mlp_defects,
    multiplier_defects,
    norm_defects,
    one_norm_defects,
    order_defects,
    placement_defects,
    residual_defects,
)
from blockexport.compare.explain.defects_pooling import pooling_defects
from blockexport.compare.explain.defects_position import (
    EXCHANGED,
    LOST,
    cache_defects,
    learned_position_defects,
    mask_defects,
    rope_defects,
)
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.interface import Ends

DROPOUT = "dropout"
DROPOUT_CAUSE = "dropout is left on: two runs on the same tokens differ"
"""The one defect that no eager run can reproduce; it is recognised by its randomness."""


def catalogue(
    config: ModelConfig,
    *,
    position: int | None = None,
    mapping: tuple[int, ...] | None = None,
    site: str | None = None,
    times: float | None = None,
    ends: Ends = Ends.LOGITS,
) -> list[Defect]:
    """Every defect that a model of `config` can have. Exchanged caches are not among them: they are seen, and not
    guessed at.

    Args:
        config: defects of options it lacks (biases, QK-norm, a window, grouped heads) are left out.
        position: where the artifact first goes wrong, for the stale slot.
        mapping: whose weights each layer was seen to use; the orders worth guessing at when None.
        site: where the artifact was seen to differ first; a norm there is also tried with a wrong epsilon by itself.
        times: the factor between what the artifact has at `site` and what it should have, where there is one.
        ends: of the artifact.
    """
    return [
        *rope_defects(config),
        *learned_position_defects(config),
        *mask_defects(config),
        *cache_defects(config, position),
        *attention_defects(config),
        *([scaled_by(times)] if times is not None and site == "query" and not is_scale(config, times) else []),
        *norm_defects(config),
        *one_norm_defects(config, site),
        *placement_defects(config),
        *mlp_defects(config),
        *residual_defects(config),
        *multiplier_defects(config),
        *head_defects(config),
        *order_defects(config, mapping),
        *pooling_defects(ends),
    ]


_TITLES = {
    "rope_interleaved": "RoPE in neighbouring pairs",
    "rope_halves": "RoPE in halves",
    "rope_partial_dropped": "RoPE on whole heads",
    "rope_missing": "no RoPE",
    "rope_backwards": "RoPE turned backwards",
    "rope_on_v": "RoPE on v",
    "rope_everywhere": "RoPE in every layer",
    "rope_base_of_others": "RoPE base of the full layers in sliding ones",
    "attention_factor_dropped": "RoPE without its attention factor",
    "rope_scaling_dropped": "no RoPE scaling",
    "position_ahead": "decode positions one too high",
    "position_behind": "decode positions one too low",
    "learned_positions_dropped": "no learned positions",
    "positions_1_on": "learned positions one too high",
    "positions_2_on": "learned positions two too high",
    "mask_sees_next": "mask that sees the next slot",
    "mask_hides_self": "mask that hides a token's own slot",
    "mask_missing": "no mask",
    "window_one_more": "window one slot too wide",
    "window_one_less": "window one slot too narrow",
    "window_dropped": "no sliding window",
    "window_everywhere": "sliding window in every layer",
    "windows_exchanged": "sliding window in the other layers",
    "slot_late": "cache written one slot too late",
    "slot_early": "cache written one slot too early",
    "slot_zero": "cache written at slot 0 in every call",
    "cache_not_written": "cache not written",
    "stale_slot": "one stale slot",
    EXCHANGED: "caches exchanged",
    LOST: "caches lost between calls",
    "heads_viewed": "heads split without a transpose",
    "merge_viewed": "heads joined without a transpose",
    "scale_missing": "scores not scaled",
    "scale_twice": "scores scaled twice",
    "scale_usual": "scores scaled by 1/sqrt(H)",
    "query_growth_dropped": "queries without the factor of their position",
    "scale_times": "scores scaled by another factor",
    "softmax_half": "softmax in half precision",
    "k_v_swapped": "k_proj and v_proj swapped",
    "heads_tiled": "K/V heads tiled",
    "qk_norm_dropped": "no QK-norm",
    "qk_norm_after_rope": "QK-norm after RoPE",
    "qk_norm_before_rope": "QK-norm before RoPE",
    "qk_norm_by_head": "QK-norm of each head by itself",
    "norm_half": "norm statistics in half precision",
    "norm_mean_kept": "mean kept in LayerNorm",
    "norm_bias_dropped": "no biases of the norms",
    "gain_plus_one": "norm gain of 1 + w",
    "gain_offset_dropped": "norm gain of w without the 1",
    "embedding_multiplier_dropped": "embedding not multiplied",
    "residual_multiplier_dropped": "residuals not multiplied",
    "logits_multiplier_dropped": "logits not multiplied",
    "final_logit_softcapping_dropped": "logits not capped",
    "attention_softcap_dropped": "scores not capped",
    "norm_shared": "one norm for attention and MLP",
    "final_norm_dropped": "no final norm",
    "attention_out_norm_dropped": "no norm after attention",
    "mlp_out_norm_dropped": "no norm after the MLP",
    "norms_before": "norms before attention and MLP",
    "gelu": "GELU in the MLP",
    "gelu_tanh": "GELU (by tanh) in the MLP",
    "silu": "SiLU in the MLP",
    "silu_missing": "no SiLU",
    "relu2_missing": "no squared ReLU",
    "square_missing": "ReLU without its square",
    "gelu_missing": "no GELU",
    "gate_up_swapped": "gate_proj and up_proj swapped",
    "attention_residual_dropped": "no residual around attention",
    "mlp_residual_dropped": "no residual around the MLP",
    "residual_serial": "attention and MLP in series",
    "head_tied": "head tied to the embedding",
    "layers_permuted": "layers in another order",
    "layer_duplicated": "a layer used twice",
    "qkv_bias_dropped": "no biases of q, k and v",
    "pool_first": "the first token's state",
    "pool_before_last": "the state of the token before the last",
    "pool_mean": "the mean for the last token's state",
    "pool_last": "the last token's state for the mean",
    "mean_without_last": "a mean without the last token",
    "mean_without_first": "a mean without the first token",
    "mean_summed": "a sum for the mean",
    "normalize_missing": "no normalisation",
    "normalize_extra": "normalisation",
    DROPOUT: "dropout",
}
_PREFIXES = {"rope_theta_": "RoPE base {}", "eps_": "norm epsilon {}", "rope_dims_": "RoPE on {} dimensions"}
_BIAS = "_bias_dropped"


def title_of(name: str) -> str:
    """The title of the defect with that name in the catalogue; `Defect.cause` says the same in a sentence."""
    if name in _TITLES:
        return _TITLES[name]
    for prefix, words in _PREFIXES.items():
        if name.startswith(prefix):
            size, _, where = name.removeprefix(prefix).partition("_in_")
            return words.format(size) + (" in one norm" if where else "")
    assert name.endswith(_BIAS), f"defect {name} has no title"
    return f"no bias of {name.removesuffix(_BIAS)}"
