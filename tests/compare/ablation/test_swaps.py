"""Each swap changes one choice, between two configs that some family has."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from blockexport.compare.ablation.swaps import SWAPS, USUAL, baseline, pairings
from blockexport.models.errors import UsageError
from blockexport.models.formats.config_hf import config_from_hf

CHANGED = {
    "layernorm": {"norm", "norm_bias"},
    "norms-around": {"norm_placement"},
    "post-norm": {"norm_placement", "qk_norm_over"},  # the latter is the same thing with one head
    "gelu": {"gated_mlp", "hidden_act", "intermediate_size"},
    "relu2": {"gated_mlp", "hidden_act", "intermediate_size"},
    "geglu": {"hidden_act"},
    "no-positions": {"layers_without_rope"},
    "learned-positions": {"learned_positions"},
    "mha": {"num_key_value_heads"},
    "mqa": {"num_key_value_heads"},
    "biases": {"qkv_bias", "o_bias", "mlp_bias"},
    "qk-norm": {"qk_norm"},
    "parallel": {"residual"},
    "tied": {"tie_word_embeddings"},
}


@pytest.mark.parametrize("name", SWAPS)
def test_two_models_differ_in_one_choice(name: str) -> None:
    (pairing,) = pairings([name], baseline(24, 128))
    base, changed = asdict(pairing.base.config), asdict(pairing.changed.config)
    assert {key for key in base if base[key] != changed[key]} - {"model_type"} == CHANGED[name]
    if name == "post-norm":
        assert base["num_attention_heads"] == base["num_key_value_heads"] == 1
    for side in (pairing.base, pairing.changed):
        assert config_from_hf(side.said, "config.json") == side.config


def test_models_that_several_swaps_have_are_trained_once() -> None:
    made = pairings(SWAPS, baseline(24, 128))
    names = {side.name for one in made for side in (one.base, one.changed)}
    assert {one.name: one.base.name for one in made if one.base.name != "baseline"} == {
        "norms-around": "norms-around-baseline",
        "post-norm": "post-norm-baseline",
        "learned-positions": "learned-positions-baseline",
        **dict.fromkeys(("gelu", "relu2", "parallel"), "layernorm"),
    }
    assert len(names) == len(SWAPS) + 4
    (alone,) = pairings(["gelu"], baseline(24, 128))
    assert alone.base.name == "gelu-baseline"
    assert set(USUAL) < set(SWAPS) and len(USUAL) == 8


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no swap 'layer-norm' \(did you mean layernorm\?\); there are layernorm, "):
        pairings(["layer-norm"], baseline(24, 128))
    with pytest.raises(UsageError, match="--size 36 has to be a multiple of 8"):
        baseline(36, 128)
