"""Presets: the published sizes, and a tiny one in which no two dimensions can be confused."""

from __future__ import annotations

import pytest

from blockexport.models.config.arithmetic import count_parameters
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.every_family import PRESETS
from blockexport.models.strict_json import read_record

# What the models' pages and weight files state; a tied matrix once.
PUBLISHED_SIZES = {
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "smollm2-135m": 134_515_008,
    "qwen3-0.6b": 596_049_920,
    "mistral-7b": 7_241_732_096,
    "smollm3-3b": 3_075_098_624,
    "ernie-4.5-0.3b": 360_748_032,
    "gemma-2b": 2_506_172_416,
    "hunyuan-7b": 7_504_568_320,
    "gemma-2-2b": 2_614_341_888,
    "granite-3.3-2b": 2_533_539_840,
    "minicpm-2b": 2_724_880_896,
    "ministral-3-3b": 3_429_006_336,
    "olmo2-1b": 1_484_916_736,
    "olmo3-7b": 7_298_011_136,
    "phi-4": 14_659_507_200,
    "seed-oss-36b": 36_151_104_512,
    "gemma-3-1b": 999_885_952,
    "stablelm-2-1.6b": 1_644_515_328,
    "aya-23-8b": 8_028_033_024,
    "minitron-4b": 4_190_509_056,
    "olmo-1b": 1_176_764_416,
    "gpt2": 124_439_808,
    "phi-2": 2_779_683_840,
    "pythia-1.4b": 1_414_647_808,
}


def test_there_are_the_presets_the_documentation_names() -> None:
    assert set(PRESETS) == {*PUBLISHED_SIZES, "tiny"}


@pytest.mark.parametrize("name", PUBLISHED_SIZES)
def test_has_the_published_number_of_parameters_and_a_source(name: str) -> None:
    preset = PRESETS[name]
    assert count_parameters(preset.config).total == PUBLISHED_SIZES[name]
    assert preset.url is not None
    assert preset.url.startswith("https://huggingface.co/")


def test_every_dimension_of_tiny_is_different() -> None:
    c = PRESETS["tiny"].config
    query, key = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    dimensions = [c.vocab_size, c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.num_attention_heads]
    dimensions += [c.num_key_value_heads, c.head_dim, c.max_position_embeddings, query, key]
    assert len(set(dimensions)) == len(dimensions)


@pytest.mark.parametrize("name", PRESETS)
def test_survives_the_manifest(name: str) -> None:
    config = PRESETS[name].config
    assert read_record(ModelConfig, config.to_json(), "config") == config


@pytest.mark.parametrize("name", PRESETS)
def test_is_consistent(name: str) -> None:
    config = PRESETS[name].config
    assert config.num_attention_heads % config.num_key_value_heads == 0
    assert config.head_dim % 2 == 0
    assert len(config.layer_types) in (0, config.num_hidden_layers)
    assert all(0 <= token < config.vocab_size for token in config.eos_token_ids)
