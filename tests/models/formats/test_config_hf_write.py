"""A written config.json reads back as the same record, in our reader and in transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transformers import AutoConfig

from blockexport.models.config.model_config import LayerType, RopeScaling
from blockexport.models.families.every_family import FAMILIES, PRESETS
from blockexport.models.formats.config_hf import config_from_hf
from blockexport.models.formats.config_hf_write import config_to_hf


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_reads_back(name: str) -> None:
    """Where a bundle names its tensors as transformers does."""
    config = PRESETS[name].config
    data = config_to_hf(config)
    if FAMILIES[config.model_type].tensor_names:
        assert data is None
        return
    assert data is not None
    assert config_from_hf(data, name) == replace(config, model_type=data["model_type"])


def test_a_mixed_window_model_reads_back_in_transformers() -> None:
    windows: tuple[LayerType, ...] = ("full_attention", "sliding_attention", "full_attention")
    config = replace(
        PRESETS["tiny"].config,
        model_type="qwen2",
        qkv_bias=True,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
        num_hidden_layers=3,
        sliding_window=7,
        layer_types=windows,
        rope_scaling=RopeScaling("linear", factor=4.0),
    )
    data = config_to_hf(config)
    assert data is not None
    theirs = AutoConfig.for_model(**data)
    assert theirs.layer_types == list(windows)
    assert theirs.sliding_window == 7
    assert config_from_hf(theirs.to_dict(), "transformers") == config


def test_what_hugging_face_cannot_say_gives_none() -> None:
    tiny = PRESETS["tiny"].config
    factors = RopeScaling("freq_factors", freq_factors=(1.0,) * (tiny.head_dim // 2))
    assert config_to_hf(replace(tiny, rope_scaling=factors)) is None
    assert config_to_hf(replace(tiny, model_type="mistral", qkv_bias=True)) is None
