"""Configs of published checkpoints: as many parameters as transformers counts, and as the checkpoint has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from blockexport.models.config.arithmetic import count_parameters
from blockexport.models.formats.config_hf import config_from_hf

GPT2 = ("n_embd", "n_layer", "n_head")
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_GROUPED = (*_SIZES, "num_key_value_heads")
_HEADS = (*_GROUPED, "head_dim")
_TIED = {"tie_word_embeddings": True}
_QWEN25 = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "use_sliding_window": False}
_GRANITE = {"attention_multiplier": 0.015625, "residual_multiplier": 0.22, **_TIED}


def _config(model_type: str, names: tuple[str, ...], *sizes: int, **more: Any) -> dict[str, Any]:
    return {"model_type": model_type, **dict(zip(names, sizes, strict=True)), **more}


CHECKPOINTS: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-2-7b": (_config("llama", _SIZES, 32_000, 4096, 11_008, 32, 32), 6_738_415_616),
    "Llama-2-13b": (_config("llama", _SIZES, 32_000, 5120, 13_824, 40, 40), 13_015_864_320),
    "Llama-3.1-8B": (_config("llama", _GROUPED, 128_256, 4096, 14_336, 32, 32, 8), 8_030_261_248),
    "Llama-3.1-70B": (_config("llama", _GROUPED, 128_256, 8192, 28_672, 80, 64, 8), 70_553_706_496),
    "Llama-3.2-1B": (_config("llama", _HEADS, 128_256, 2048, 8192, 16, 32, 8, 64, **_TIED), 1_235_814_400),
    "Llama-3.2-3B": (_config("llama", _HEADS, 128_256, 3072, 8192, 28, 24, 8, 128, **_TIED), 3_212_749_824),
    "TinyLlama-1.1B": (_config("llama", _GROUPED, 32_000, 2048, 5632, 22, 32, 4), 1_100_048_384),
    "SmolLM2-135M": (_config("llama", _GROUPED, 49_152, 576, 1536, 30, 9, 3, **_TIED), 134_515_008),
    "SmolLM2-360M": (_config("llama", _GROUPED, 49_152, 960, 2560, 32, 15, 5, **_TIED), 361_821_120),
    "SmolLM2-1.7B": (_config("llama", _GROUPED, 49_152, 2048, 8192, 24, 32, 32, **_TIED), 1_711_376_384),
    "SmolLM3-3B": (_config("smollm3", _GROUPED, 128_256, 2048, 11_008, 36, 16, 4), 3_075_098_624),
    "Mistral-7B-v0.1": (_config("mistral", _GROUPED, 32_000, 4096, 14_336, 32, 32, 8), 7_241_732_096),
    "Ministral-3-3B": (_config("ministral3", _HEADS, 131_072, 3072, 9216, 26, 32, 8, 128, **_TIED), 3_429_006_336),
    "Ministral-3-8B": (_config("ministral3", _HEADS, 131_072, 4096, 14_336, 34, 32, 8, 128), 8_489_553_920),
    "Mistral-Nemo": (_config("mistral", _HEADS, 131_072, 5120, 14_336, 40, 32, 8, 128), 12_247_782_400),
    "Qwen2.5-0.5B": (_config("qwen2", _GROUPED, 151_936, 896, 4864, 24, 14, 2, **_QWEN25, **_TIED), 494_032_768),
    "Qwen2.5-1.5B": (_config("qwen2", _GROUPED, 151_936, 1536, 8960, 28, 12, 2, **_QWEN25, **_TIED), 1_543_714_304),
    "Qwen2.5-3B": (_config("qwen2", _GROUPED, 151_936, 2048, 11_008, 36, 16, 2, **_QWEN25, **_TIED), 3_085_938_688),
    "Qwen2.5-7B": (_config("qwen2", _GROUPED, 152_064, 3584, 18_944, 28, 28, 4, **_QWEN25), 7_615_616_512),
    "Qwen2.5-14B": (_config("qwen2", _GROUPED, 152_064, 5120, 13_824, 48, 40, 8, **_QWEN25), 14_770_033_664),
    "Qwen2.5-32B": (_config("qwen2", _GROUPED, 152_064, 5120, 27_648, 64, 40, 8, **_QWEN25), 32_763_876_352),
    "Qwen3-0.6B": (_config("qwen3", _HEADS, 151_936, 1024, 3072, 28, 16, 8, 128, **_TIED), 596_049_920),
    "Qwen3-1.7B": (_config("qwen3", _HEADS, 151_936, 2048, 6144, 28, 16, 8, 128, **_TIED), 1_720_574_976),
    "Qwen3-4B": (_config("qwen3", _HEADS, 151_936, 2560, 9728, 36, 32, 8, 128, **_TIED), 4_022_468_096),
    "Qwen3-8B": (_config("qwen3", _HEADS, 151_936, 4096, 12_288, 36, 32, 8, 128), 8_190_735_360),
    "Qwen3-14B": (_config("qwen3", _HEADS, 151_936, 5120, 17_408, 40, 40, 8, 128), 14_768_307_200),
    "Qwen3-32B": (_config("qwen3", _HEADS, 151_936, 5120, 25_600, 64, 64, 8, 128), 32_762_123_264),
    "gemma-2b": (_config("gemma", _HEADS, 256_000, 2048, 16_384, 18, 8, 1, 256), 2_506_172_416),
    "gemma-7b": (_config("gemma", _HEADS, 256_000, 3072, 24_576, 28, 16, 16, 256), 8_537_680_896),
    "gemma-2-2b": (_config("gemma2", _HEADS, 256_000, 2304, 9216, 26, 8, 4, 256), 2_614_341_888),
    "gemma-2-9b": (_config("gemma2", _HEADS, 256_000, 3584, 14_336, 42, 16, 8, 256), 9_241_705_984),
    "gemma-2-27b": (
        _config("gemma2", _HEADS, 256_000, 4608, 36_864, 46, 32, 16, 128, query_pre_attn_scalar=144),
        27_227_128_320,
    ),
    "gemma-3-270m": (_config("gemma3_text", _HEADS, 262_144, 640, 2048, 18, 4, 1, 256), 268_098_176),
    "gemma-3-1b": (_config("gemma3_text", _HEADS, 262_144, 1152, 6912, 26, 4, 1, 256), 999_885_952),
    "granite-3.3-2b": (_config("granite", _GROUPED, 49_159, 2048, 8192, 40, 32, 8, **_GRANITE), 2_533_539_840),
    "Hunyuan-7B": (_config("hunyuan_v1_dense", _HEADS, 128_167, 4096, 14_336, 32, 32, 8, 128, **_TIED), 7_504_568_320),
    "glm-4-9b-chat": (_config("glm", _GROUPED, 151_552, 4096, 13_696, 40, 32, 2), 9_399_951_360),
    "GLM-4-9B-0414": (_config("glm4", _GROUPED, 151_552, 4096, 13_696, 40, 32, 2), 9_400_279_040),
    "Phi-3-mini-4k": (_config("phi3", _GROUPED, 32_064, 3072, 8192, 32, 32, 32, sliding_window=2047), 3_821_079_552),
    "phi-4": (_config("phi3", _GROUPED, 100_352, 5120, 17_920, 40, 40, 10, pad_token_id=None), 14_659_507_200),
    "OLMo-1B": (_config("olmo", _GROUPED, 50_304, 2048, 8192, 16, 16, 16, **_TIED), 1_176_764_416),
    "OLMo-7B": (_config("olmo", _GROUPED, 50_304, 4096, 11_008, 32, 32, 32), 6_888_095_744),
    "OLMo-2-1B": (_config("olmo2", _GROUPED, 100_352, 2048, 8192, 16, 16, 16), 1_484_916_736),
    "OLMo-2-7B": (_config("olmo2", _GROUPED, 100_352, 4096, 11_008, 32, 32, 32), 7_298_617_344),
    "stablelm-2-1.6b": (
        _config("stablelm", _GROUPED, 100_352, 2048, 5632, 24, 32, 32, use_qkv_bias=True),
        1_644_515_328,
    ),
    "starcoder2-3b": (_config("starcoder2", _GROUPED, 49_152, 3072, 12_288, 30, 24, 2), 3_030_371_328),
    "starcoder2-7b": (_config("starcoder2", _GROUPED, 49_152, 4608, 18_432, 32, 36, 4), 7_173_923_840),
    "aya-23-8b": (_config("cohere", _GROUPED, 256_000, 4096, 14_336, 32, 32, 8), 8_028_033_024),
    "gpt2": (_config("gpt2", GPT2, 768, 12, 12, vocab_size=50_257), 124_439_808),
    "gpt2-medium": (_config("gpt2", GPT2, 1024, 24, 16, vocab_size=50_257), 354_823_168),
    "gpt2-large": (_config("gpt2", GPT2, 1280, 36, 20, vocab_size=50_257), 774_030_080),
    "gpt2-xl": (_config("gpt2", GPT2, 1600, 48, 25, vocab_size=50_257), 1_557_611_200),
    "pythia-70m": (_config("gpt_neox", _SIZES, 50_304, 512, 2048, 6, 8), 70_426_624),
    "pythia-160m": (_config("gpt_neox", _SIZES, 50_304, 768, 3072, 12, 12), 162_322_944),
    "pythia-410m": (_config("gpt_neox", _SIZES, 50_304, 1024, 4096, 24, 16), 405_334_016),
    "pythia-1b": (_config("gpt_neox", _SIZES, 50_304, 2048, 8192, 16, 8), 1_011_781_632),
    "pythia-1.4b": (_config("gpt_neox", _SIZES, 50_304, 2048, 8192, 24, 16), 1_414_647_808),
    "pythia-2.8b": (_config("gpt_neox", _SIZES, 50_304, 2560, 10_240, 32, 32), 2_775_208_960),
    "pythia-6.9b": (_config("gpt_neox", _SIZES, 50_432, 4096, 16_384, 32, 32), 6_857_302_016),
    "phi-1.5": (_config("phi", _SIZES, 51_200, 2048, 8192, 24, 32), 1_418_270_720),
    "phi-2": (_config("phi", _SIZES, 51_200, 2560, 10_240, 32, 32, partial_rotary_factor=0.4), 2_779_683_840),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_as_many_parameters_as_transformers_counts_and_the_checkpoint_has(name: str) -> None:
    data, known = CHECKPOINTS[name]
    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(**data)
        model = transformers.AutoModelForCausalLM.from_config(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert count_parameters(config_from_hf(data, name)).total == counted == known
