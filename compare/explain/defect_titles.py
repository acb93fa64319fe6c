"""Short titles of the catalogue's defects, for lists of many; `Defect.cause` says the same in a sentence."""

from __future__ import annotations

from blockexport.compare.explain.defects import DROPOUT
from blockexport.compare.explain.defects_position import EXCHANGED, LOST

_TITLES = {
    "rope_interleaved": "RoPE in neighbouring pairs",
    "rope_missing": "no RoPE",
    "rope_backwards": "RoPE turned backwards",
    "rope_on_v": "RoPE on v",
    "rope_everywhere": "RoPE in every layer",
    "rope_scaling_dropped": "no RoPE scaling",
    "position_ahead": "decode positions one too high",
    "position_behind": "decode positions one too low",
    "mask_sees_next": "mask that sees the next slot",
    "mask_hides_self": "mask that hides a token's own slot",
    "mask_missing": "no mask",
    "window_one_more": "window one slot too wide",
    "window_one_less": "window one slot too narrow",
    "window_dropped": "no sliding window",
    "window_everywhere": "sliding window in every layer",
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
    "scale_times": "scores scaled by another factor",
    "softmax_half": "softmax in half precision",
    "k_v_swapped": "k_proj and v_proj swapped",
    "heads_tiled": "K/V heads tiled",
    "qk_norm_dropped": "no QK-norm",
    "qk_norm_after_rope": "QK-norm after RoPE",
    "norm_half": "norm statistics in half precision",
    "gain_plus_one": "norm gain of 1 + w",
    "final_norm_dropped": "no final norm",
    "gelu": "GELU for SiLU",
    "gelu_tanh": "GELU (by tanh) for SiLU",
    "silu_missing": "no SiLU",
    "gate_up_swapped": "gate_proj and up_proj swapped",
    "attention_residual_dropped": "no residual around attention",
    "mlp_residual_dropped": "no residual around the MLP",
    "head_tied": "head tied to the embedding",
    "layers_permuted": "layers in another order",
    "layer_duplicated": "a layer used twice",
    "qkv_bias_dropped": "no biases of q, k and v",
    DROPOUT: "dropout",
}
_PREFIXES = {"rope_theta_": "RoPE base {}", "eps_": "norm epsilon {}"}
_BIAS = "_bias_dropped"


def title_of(name: str) -> str:
    """The title of the defect with that name in the catalogue."""
    if name in _TITLES:
        return _TITLES[name]
    for prefix, words in _PREFIXES.items():
        if name.startswith(prefix):
            size, _, where = name.removeprefix(prefix).partition("_in_")
            return words.format(size) + (" in one norm" if where else "")
    assert name.endswith(_BIAS), f"defect {name} has no title"
    return f"no bias of {name.removesuffix(_BIAS)}"
