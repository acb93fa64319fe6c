"""Reading `config.json`: against transformers' own resolution of the same keys, and what must be refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import HunYuanDenseV1RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.nemotron.modeling_nemotron import NemotronRotaryEmbedding
from transformers.models.stablelm.modeling_stablelm import StableLmRotaryEmbedding

from blockexport.models.block.rope import inverse_frequencies
from blockexport.models.checkpoints.tensor_spellings import usual_name
from blockexport.models.config.model_config import ModelConfig, RopeScaling
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import FAMILIES
from blockexport.models.formats.config_hf import config_from_hf, read_hf_config
from blockexport.models.strict_json import read_record
from tests.support import shared_path

DIMENSIONS: dict[str, Any] = {
    "vocab_size": 331,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
CLASSES: dict[str, Any] = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "ernie4_5": partial(transformers.Ernie4_5Config, pad_token_id=None),
    "gemma": partial(transformers.GemmaConfig, pad_token_id=None),
    "gemma2": partial(transformers.Gemma2Config, pad_token_id=None),
    "gemma3_text": partial(transformers.Gemma3TextConfig, pad_token_id=None),
    "granite": transformers.GraniteConfig,
    "hunyuan_v1_dense": transformers.HunYuanDenseV1Config,
    "olmo2": partial(transformers.Olmo2Config, pad_token_id=None),
    "ministral": transformers.MinistralConfig,
    "ministral3": transformers.Ministral3Config,
    "olmo3": partial(transformers.Olmo3Config, pad_token_id=None),
    "phi3": partial(transformers.Phi3Config, pad_token_id=None),
    "seed_oss": partial(transformers.SeedOssConfig, pad_token_id=None),
    "smollm3": partial(transformers.SmolLM3Config, pad_token_id=None),
    "stablelm": transformers.StableLmConfig,
    "starcoder2": transformers.Starcoder2Config,
    "cohere": partial(transformers.CohereConfig, pad_token_id=None),
    "nemotron": transformers.NemotronConfig,
    "olmo": partial(transformers.OlmoConfig, pad_token_id=None),
}
ROTATIONS: dict[str, Any] = {
    "hunyuan_v1_dense": HunYuanDenseV1RotaryEmbedding,
    "nemotron": NemotronRotaryEmbedding,
    "stablelm": StableLmRotaryEmbedding,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
ALPHA = {"type": "dynamic", "alpha": 30.0, "factor": 1.0, "beta_fast": 32, "mscale": 1.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
GROWING = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.2}
MIXED = ["full_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]

ABSENT: Any = object()  # takes a key away

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"head_dim": 10, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-5}),
    ("llama", {"rope_theta": 500_000.0, "rope_scaling": LLAMA3, "eos_token_id": [5, 7], "bos_token_id": 3}),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}, "tie_word_embeddings": True}),
    ("llama", {"num_key_value_heads": None, "torch_dtype": "bfloat16"}),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}),
    ("qwen2", {"rope_scaling": {**YARN, "attention_factor": 0.9, "truncate": False}, "rope_theta": 1e6}),
    ("qwen3", {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.1, "beta_fast": 8, "beta_slow": 2}}),
    ("mistral", {}),
    ("mistral", {"sliding_window": 37, "head_dim": 10, "dtype": "float16"}),
    ("mistral", {"sliding_window": None, "rope_theta": 1e6}),
    ("qwen2", {}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 17, "max_window_layers": 2}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 17, "max_window_layers": 9}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 17, "layer_types": MIXED, "max_window_layers": 1}),
    ("qwen2", {"use_sliding_window": False, "sliding_window": 17, "max_window_layers": 0}),
    ("qwen3", {}),
    ("qwen3", {"head_dim": 10, "attention_bias": True, "use_sliding_window": True, "layer_types": MIXED}),
    ("qwen3", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 1e6}),
    ("ernie4_5", {}),
    ("ernie4_5", {"use_bias": True, "head_dim": 10, "tie_word_embeddings": False}),
    ("gemma", {"num_key_value_heads": 2}),
    ("gemma", {"hidden_act": "gelu", "head_dim": 10, "attention_bias": True, "rms_norm_eps": 1e-5}),
    ("gemma2", {}),
    ("gemma2", {"query_pre_attn_scalar": 144, "attn_logit_softcapping": None, "final_logit_softcapping": 7.5}),
    ("gemma2", {"sliding_window": 17, "layer_types": MIXED, "hidden_activation": "silu", "head_dim": 10}),
    ("gemma3_text", {}),
    ("gemma3_text", {"sliding_window": 17, "sliding_window_pattern": 2, "rope_local_base_freq": 200.0}),
    ("gemma3_text", {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "layer_types": MIXED}),
    ("ministral", {"num_key_value_heads": 2, "head_dim": 16}),
    ("ministral", {"num_key_value_heads": 2, "sliding_window": None, "head_dim": 10}),
    ("ministral", {"num_key_value_heads": 2, "sliding_window": 17, "layer_types": MIXED, "head_dim": 10}),
    ("ministral3", {"head_dim": 10}),
    ("ministral3", {"head_dim": 10, "rope_parameters": GROWING, "sliding_window": 17}),
    ("ministral3", {"head_dim": 10, "rope_scaling": {**GROWING, "mscale": 0.7}, "rope_theta": 1e6}),
    ("olmo3", {}),
    ("olmo3", {"rope_theta": 5e5, "rope_scaling": YARN, "sliding_window": 17, "attention_bias": True}),
    ("phi3", {}),
    ("phi3", {"sliding_window": 17, "original_max_position_embeddings": 64}),
    ("seed_oss", {"num_key_value_heads": 2}),
    ("seed_oss", {"num_key_value_heads": 2, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True}),
    ("hunyuan_v1_dense", {"head_dim": 12}),
    ("hunyuan_v1_dense", {"head_dim": 12, "rope_scaling": ALPHA, "rope_theta": 5000.0, "attention_bias": True}),
    ("granite", {}),
    (
        "granite",
        {
            "attention_multiplier": 0.1,
            "embedding_multiplier": 12,
            "logits_scaling": 49.0,
            "residual_multiplier": 0.22,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    ("olmo2", {}),
    ("olmo2", {"attention_bias": True, "rope_theta": 5e5, "rms_norm_eps": 1e-6}),
    ("cohere", {}),
    ("cohere", {"logit_scale": 0.5, "layer_norm_eps": 1e-6, "attention_bias": True, "rope_theta": 1e4}),
    ("nemotron", {}),
    ("nemotron", {"norm_eps": 1e-6, "attention_bias": True, "mlp_bias": True, "partial_rotary_factor": 0.25}),
    ("olmo", {}),
    ("olmo", {"attention_bias": True, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    ("stablelm", {}),
    ("starcoder2", {}),
    ("starcoder2", {"use_bias": False, "sliding_window": 17, "norm_epsilon": 1e-6, "hidden_act": "gelu"}),
    ("stablelm", {"layer_norm_eps": 1e-6, "use_qkv_bias": True, "partial_rotary_factor": 0.5, "rope_theta": 1e6}),
    ("stablelm", {"use_parallel_residual": True, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    ("smollm3", {}),
    ("smollm3", {"no_rope_layer_interval": 2, "head_dim": 10, "tie_word_embeddings": False}),
    ("smollm3", {"no_rope_layers": [1, 0, 0, 1, 1, 0], "attention_bias": True, "mlp_bias": True, "rope_theta": 1e6}),
    ("smollm3", {"no_rope_layers": [0] * 5, "use_sliding_window": False, "sliding_window": 17}),
    ("smollm3", {"no_rope_layer_interval": 3, "use_sliding_window": True, "sliding_window": 17}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 17, "layer_types": MIXED, "max_window_layers": 1}),
]


def old_form(model_type: str, changes: dict[str, Any]) -> dict[str, Any]:
    """As a file written by hand or by an older transformers: only what was set, rope_theta and rope_scaling."""
    keys = {"model_type": model_type, **DIMENSIONS, **changes}
    return {key: value for key, value in keys.items() if value is not ABSENT}


def new_form(model_type: str, changes: dict[str, Any]) -> dict[str, Any]:
    """As transformers itself saves it."""
    saved: dict[str, Any] = json.loads(reference(model_type, changes).to_json_string(use_diff=False))
    return saved


def reference(model_type: str, changes: dict[str, Any]) -> Any:
    """transformers' config of the same keys; copied, as it changes nested ones in place."""
    return CLASSES[model_type](**json.loads(json.dumps({**DIMENSIONS, **changes})))


@pytest.mark.parametrize("form", [old_form, new_form])
@pytest.mark.parametrize(("model_type", "changes"), VARIANTS)
def test_equals_what_transformers_resolves(model_type: str, changes: dict[str, Any], form: Any) -> None:
    expected = reference(model_type, changes)
    config = config_from_hf(form(model_type, changes), "config.json")
    keys = FAMILIES[model_type].keys
    for name in (*DIMENSIONS, "rms_norm_eps", "tie_word_embeddings", "bos_token_id"):
        if name != "num_key_value_heads" or changes.get(name, 0) is not None:
            assert getattr(config, name) == getattr(expected, keys.get(name, name), 1e-5), name
    assert config.hidden_act == (getattr(expected, "hidden_activation", None) or expected.hidden_act)
    assert config.num_key_value_heads == expected.num_key_value_heads
    assert config.head_dim == (getattr(expected, "head_dim", None) or 48 // 6)
    assert config.dtype == str(expected.dtype or "float32").removeprefix("torch.")
    eos = expected.eos_token_id
    assert config.eos_token_ids == (() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,))
    wanted: dict[int | None, Any]
    if config.sliding_rope_theta is None:
        theirs = ROTATIONS.get(model_type, LlamaRotaryEmbedding)(expected)
        wanted = {None: theirs.inv_freq}
        scaling = config.rope_scaling or RopeScaling("linear")
        assert scaling.attention_factor == pytest.approx(theirs.attention_scaling)
    else:
        both = Gemma3RotaryEmbedding(expected)
        full = getattr(both, "full_attention_inv_freq", None)  # where a layer has it
        wanted = {None: full, config.sliding_window: both.sliding_attention_inv_freq}
    for layer in range(config.num_hidden_layers):
        found = inverse_frequencies(config.rope_of(layer))
        expected_freq = wanted[config.window_of(layer) if config.sliding_rope_theta else None]
        torch.testing.assert_close(found, expected_freq, rtol=0, atol=0, check_dtype=True)


@pytest.mark.parametrize(("model_type", "changes"), VARIANTS)
def test_windows_and_biases_are_those_of_the_model_transformers_builds(
    model_type: str, changes: dict[str, Any]
) -> None:
    expected = reference(model_type, changes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(expected)
    config = config_from_hf(old_form(model_type, changes), "config.json")
    names = {usual_name(name, FAMILIES[model_type].tensor_names) for name, _ in model.named_parameters()}
    block = "model.layers.3."
    first = "qkv_proj" if model_type == "phi3" else "q_proj"
    assert config.qkv_bias == (f"{block}self_attn.{first}.bias" in names)
    assert config.qkv_bias == (f"{block}self_attn.v_proj.bias" in names)
    assert config.o_bias == (f"{block}self_attn.o_proj.bias" in names)
    assert config.mlp_bias == (f"{block}mlp.up_proj.bias" in names)
    assert config.qk_norm == (f"{block}self_attn.k_norm.weight" in names)
    for number, layer in enumerate(model.model.layers):
        per_layer = getattr(layer.self_attn, "sliding_window", None)
        window = expected.sliding_window if model_type in ("mistral", "ministral3", "phi3", "starcoder2") else per_layer
        assert config.window_of(number) == window, number
        assert config.has_rope(number) == bool(getattr(layer.self_attn, "use_rope", True)), number


def test_reads_the_trained_model_beside_the_repository() -> None:
    config = read_hf_config(shared_path("models/stories260K"))
    assert (config.hidden_size, config.intermediate_size, config.head_dim) == (64, 172, 8)
    assert config.tie_word_embeddings
    assert read_record(ModelConfig, json.loads(json.dumps(config.to_json())), "config") == config


# Keys beside the plain ones, as the published files have them.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama-3.2-1B": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": [128001, 128008, 128009],
        "bos_token_id": 128000,
        "head_dim": 64,
        "initializer_range": 0.02,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rope_scaling": {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192},
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0",
        "use_cache": True,
    },
    "SmolLM2-135M-Instruct": {
        "model_type": "llama",
        "is_llama_config": True,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "pad_token_id": 2,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
        "_name_or_path": "somewhere",
    },
    "Mistral-7B-v0.1": {
        "model_type": "mistral",
        "sliding_window": 4096,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
    },
    "Mistral-7B-v0.3": {"model_type": "mistral", "sliding_window": None, "rope_theta": 1000000.0},
    "Qwen2.5-0.5B": {
        "model_type": "qwen2",
        "use_sliding_window": False,
        "sliding_window": 32768,
        "max_window_layers": 24,
        "rope_theta": 1000000.0,
        "use_mrope": False,
        "attention_dropout": 0.0,
    },
    "Qwen3-0.6B": {
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 128,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 28,
        "rope_scaling": None,
        "rope_theta": 1000000,
    },
    "SmolLM3-3B": {
        "model_type": "smollm3",
        "attention_bias": False,
        "mlp_bias": False,
        "layer_types": ["full_attention"] * 5,
        "max_window_layers": 28,
        "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0, 1],
        "pretraining_tp": 2,
        "rope_scaling": None,
        "rope_theta": 5000000.0,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "MiniCPM-2B": {
        "model_type": "minicpm",
        "architectures": ["MiniCPMForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_minicpm.MiniCPMConfig"},
        "hidden_act": "silu",
        "initializer_range": 0.1,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "scale_emb": 12,
        "dim_model_base": 256,
        "scale_depth": 1.4,
    },
    "Ministral-3-8B-Base-2512": {
        "model_type": "ministral3",
        "rope_parameters": {**GROWING, "type": "yarn", "rope_theta": 1e6, "beta_fast": 32.0, "beta_slow": 1.0},
        "sliding_window": None,
    },
    "Hunyuan-7B-Instruct": {
        "model_type": "hunyuan_v1_dense",
        "attention_head_dim": 8,
        "head_dim": 8,
        "cla_share_factor": 2,
        "eod_token_id": 127967,
        "norm_type": "rms",
        "use_cla": False,
        "use_qk_norm": True,
        "use_rotary_pos_emb": True,
        "rope_scaling": {**ALPHA, "beta_slow": 1, "mscale_all_dim": 0.0},
    },
    "TinyLlama-1.1B-Chat": {"model_type": "llama", "_flash_attn_2_enabled": True, "max_length": 2048},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_accepts_the_keys_of_published_models(name: str) -> None:
    config = config_from_hf({**DIMENSIONS, **PUBLISHED[name]}, name)
    assert config.model_type == PUBLISHED[name]["model_type"]


def test_llama3_scaling_starts_from_the_length_beside_it_or_the_model_s_own() -> None:
    scaling = {key: value for key, value in LLAMA3.items() if key != "original_max_position_embeddings"}
    beside = config_from_hf(old_form("llama", {"rope_scaling": scaling, "original_max_position_embeddings": 64}), "x")
    assert beside.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 64)
    own = config_from_hf(old_form("llama", {"rope_scaling": scaling}), "x")
    assert own.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, DIMENSIONS["max_position_embeddings"])


def test_old_and_new_rope_keys_may_repeat_each_other() -> None:
    keys = {"rope_theta": 5e5, "rope_scaling": LLAMA3, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}}
    assert config_from_hf(old_form("llama", keys), "x").rope_theta == 5e5


LINEAR = {"rope_type": "linear", "factor": 2.0}
REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    # not implemented, by name and with what is
    (
        "mamba",
        {},
        ["'mamba'", "llama, ", "smollm3"],
    ),
    ("llama", {"hidden_act": "relu"}, ["'relu'", "silu"]),
    ("gemma", {"hidden_activation": "gelu"}, ["hidden_activation", "gelu"]),
    ("gemma", {"use_bidirectional_attention": True}, ["use_bidirectional_attention"]),
    ("gemma2", {"sliding_window": None}, ["sliding_window is null"]),
    (
        "gemma3_text",
        {"rope_theta": 1e6, "rope_parameters": {"full_attention": {}}},
        ["both rope_parameters and rope_theta"],
    ),
    (
        "gemma3_text",
        {"rope_parameters": {"rope_theta": 1e6}},
        ["rope_parameters", "full_attention and sliding_attention"],
    ),
    ("gemma3_text", {"rope_parameters": {"sliding_attention": LINEAR}}, ["sliding_attention is scaled"]),
    ("phi3", {"rope_scaling": {"type": "longrope"}}, ["short_factor"]),
    ("ministral3", {"rope_theta": 5000.0}, ["rope_parameters.rope_theta is 1000000.0 and rope_theta is 5000.0"]),
    ("ministral3", {"rope_parameters": YARN}, ["rope_parameters.llama_4_scaling_beta is missing"]),
    (
        "ministral3",
        {"rope_scaling": {**GROWING, "llama_4_scaling_beta": -1}},
        ["rope_scaling.llama_4_scaling_beta is -1"],
    ),
    ("ministral3", {"rope_parameters": {"llama_4_scaling_beta": 0.1}}, ["rope_parameters.rope_type is 'default'"]),
    ("llama", {"rope_scaling": GROWING}, ["rope_scaling.llama_4_scaling_beta", "means nothing to RoPE of type 'yarn'"]),
    ("minicpm", {"scale_depth": 0}, ["scale_depth is 0"]),
    ("hunyuan_v1_dense", {"use_qk_norm": False}, ["use_qk_norm is false, and only true"]),
    ("hunyuan_v1_dense", {"attention_head_dim": 10, "head_dim": 8}, ["attention_head_dim is 10, and only 8"]),
    ("hunyuan_v1_dense", {"rope_scaling": {**ALPHA, "factor": 2.0}}, ["rope_scaling.factor is 2.0", "alpha"]),
    ("hunyuan_v1_dense", {"rope_scaling": ALPHA, "head_dim": 2}, ["head_dim is 2", "alpha"]),
    ("llama", {"rope_scaling": ALPHA}, ["rope_scaling.alpha", "means nothing to RoPE of type 'dynamic'"]),
    ("minicpm", {"sparse_config": {"kernel_size": 32}}, ["sparse_config"]),
    ("minicpm", {"head_dim": 10}, ["head_dim"]),
    ("granite", {"residual_multiplier": 0}, ["residual_multiplier is 0"]),
    ("llama", {"rope_scaling": {"rope_type": "su", "factor": 4.0}}, ["'su'", "default, linear, llama3, yarn"]),
    ("qwen2", {"rope_scaling": {"type": "su", "factor": 4.0}}, ["'su'", "linear"]),
    ("qwen3", {"rope_parameters": {"rope_type": "ntk"}}, ["'ntk'", "linear"]),
    ("llama", {"quantization_config": {"quant_method": "fp8"}}, ["quantization_config", "unquantised"]),
    ("llama", {"quantization": {"group_size": 64, "bits": 4}}, ["quantization", "unquantised"]),
    ("llama", {"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
    ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, ["partial_rotary", "0.25"]),
    ("llama", {"rope_interleaved": True}, ["rope_interleaved", "true"]),
    ("llama", {"pretraining_tp": 2}, ["pretraining_tp", "2"]),
    ("llama", {"auto_map": {"AutoModel": "x.Y"}}, ["auto_map"]),
    ("llama", {"torch_dtype": "float8_e4m3fn"}, ["float8_e4m3fn", "bfloat16"]),
    ("llama", {"sliding_window": 64}, ["sliding_window", "64", "mistral"]),
    ("mistral", {"attention_bias": True}, ["attention_bias", "mistral"]),
    ("qwen2", {"attention_bias": False}, ["attention_bias", "qwen2"]),
    ("qwen3", {"mlp_bias": True}, ["mlp_bias"]),
    # unknown
    ("llama", {"logit_softcap": 30.0}, ["logit_softcap = 30.0", "inference"]),
    ("llama", {"hidden_atc": "silu"}, ["hidden_atc", "did you mean 'hidden_act'"]),
    ("llama", {"rope_scaling": {**LINEAR, "beta_fast": 32}}, ["rope_scaling.beta_fast", "linear"]),
    ("llama", {"rope_scaling": {"factor": 2.0}}, ["rope_scaling.factor", "an object without a rope_type has"]),
    # a default is not quoted as if the file stated it
    ("qwen2", {"num_key_value_heads": ABSENT}, ["num_key_value_heads is 32 (the default, as the file does not"]),
    ("mistral", {"num_key_value_heads": ABSENT}, ["attention_heads is 6 and", "value_heads is 8 (the default"]),
    ("qwen3", {"num_key_value_heads": 4}, ["num_attention_heads is 6 and num_key_value_heads is 4:"]),
    ("llama", {"hidden_size": 54}, ["head_dim is 9 (hidden size / heads, as the file does not state it)"]),
    ("llama", {"head_dim": 7}, ["head_dim is 7;"]),
    ("mistral", {"use_sliding_window": False}, ["sliding_window is 4096 (the default"]),
    ("mistral", {"layer_types": MIXED}, ["sliding_window is 4096 (the default"]),
    ("qwen2", {"layer_types": MIXED, "sliding_window": 5}, ["use_sliding_window is false (the default"]),
    # in conflict
    ("llama", {"num_key_value_heads": 4}, ["6", "4"]),
    ("llama", {"head_dim": 9}, ["9", "even"]),
    ("llama", {"hidden_size": 50}, ["50", "6"]),
    ("llama", {"torch_dtype": "float16", "dtype": "bfloat16"}, ["float16", "bfloat16"]),
    ("llama", {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, ["500000", "10000"]),
    ("llama", {"rope_scaling": LINEAR, "rope_parameters": {**LINEAR, "factor": 3.0}}, ["2.0", "3.0"]),
    ("llama", {"rope_scaling": {**LINEAR, "type": "llama3"}}, ["linear", "llama3"]),
    (
        "llama",
        {"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}},
        ["low_freq_factor is 4.0", "high_freq_factor is 4.0"],
    ),
    ("llama", {"rope_scaling": LLAMA3, "original_max_position_embeddings": 64}, ["128", "64"]),
    ("llama", {"rope_scaling": {**YARN, "beta_fast": 1, "beta_slow": 32}}, ["beta_fast is 1", "beta_slow is 32"]),
    ("llama", {"rope_scaling": {"rope_type": "yarn"}}, ["rope_scaling.factor", "missing"]),
    ("qwen3", {"rope_parameters": {"full_attention": LINEAR, "rope_theta": 1e4}}, ["per layer type (full_attention)"]),
    ("llama", {"rope_scaling": {"full_attention": LINEAR, "sliding_attention": LINEAR}}, ["rope_scaling", "ignores"]),
    ("mistral", {"rope_parameters": {"sliding_attention": None}}, ["rope_parameters", "per layer type"]),
    ("qwen2", {"rope_parameters": {"chunked_attention": LINEAR}}, ["rope_parameters.chunked_attention"]),
    ("qwen2", {"layer_types": MIXED[:3], "use_sliding_window": True}, ["3", "5"]),
    ("qwen2", {"layer_types": MIXED}, ["layer_types", "use_sliding_window"]),
    ("qwen2", {"use_sliding_window": True, "sliding_window": None}, ["use_sliding_window", "null"]),
    ("qwen2", {"layer_types": ["chunked_attention"] * 5}, ["chunked_attention"]),
    ("mistral", {"sliding_window": 16, "layer_types": MIXED}, ["layer_types", "16"]),
    ("mistral", {"sliding_window": 16, "use_sliding_window": False}, ["use_sliding_window", "16"]),
    ("smollm3", {"use_sliding_window": True}, ["use_sliding_window", "null"]),
    ("smollm3", {"layer_types": MIXED, "sliding_window": 5}, ["use_sliding_window is false (the default"]),
    # wrong type or range
    ("smollm3", {"no_rope_layers": [1, 1, 1, 0]}, ["no_rope_layers is [1, 1, 1, 0]", "each of the 5 layers"]),
    ("smollm3", {"no_rope_layers": [1, 1, 1, 2, 1]}, ["no_rope_layers", "a 0 for each other"]),
    ("smollm3", {"no_rope_layers": "11101"}, ["no_rope_layers", '"11101"']),
    ("smollm3", {"no_rope_layer_interval": 0}, ["no_rope_layer_interval is 0"]),
    ("llama", {"hidden_size": "48"}, ["hidden_size", '"48"']),
    ("llama", {"hidden_size": 48.0}, ["hidden_size", "48.0"]),
    ("llama", {"num_hidden_layers": True}, ["num_hidden_layers", "true"]),
    ("llama", {"num_hidden_layers": -1}, ["num_hidden_layers", "-1"]),
    ("llama", {"num_hidden_layers": 10**9}, ["num_hidden_layers", "10000"]),
    ("llama", {"vocab_size": None}, ["vocab_size", "null"]),
    ("llama", {"rms_norm_eps": float("nan")}, ["rms_norm_eps", "NaN"]),
    ("llama", {"rms_norm_eps": 0}, ["rms_norm_eps", "0"]),
    ("llama", {"rope_theta": float("inf")}, ["rope_theta", "Infinity"]),
    ("llama", {"rope_theta": False}, ["rope_theta", "false"]),
    ("llama", {"rope_scaling": [2]}, ["rope_scaling", "[2]"]),
    ("llama", {"tie_word_embeddings": 1}, ["tie_word_embeddings", "1"]),
    ("llama", {"attention_bias": "no"}, ["attention_bias", '"no"']),
    ("llama", {"eos_token_id": [2, "x"]}, ["eos_token_id"]),
    ("llama", {"eos_token_id": -1}, ["eos_token_id", "-1"]),
    ("llama", {"bos_token_id": 1.5}, ["bos_token_id", "1.5"]),
    ("llama", {"rope_interleaved": 0}, ["rope_interleaved", "0"]),
    ("qwen2", {"use_sliding_window": 1}, ["use_sliding_window", "1"]),
    ("mistral", {"sliding_window": 0}, ["sliding_window", "0"]),
]


@pytest.mark.parametrize(("model_type", "changes", "said"), REFUSED)
def test_refuses_by_name(model_type: str, changes: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        config_from_hf(old_form(model_type, changes), "somewhere/config.json")
    message = str(caught.value)
    assert message.startswith("somewhere/config.json: ")
    for part in said:
        assert part in message


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("hidden_atc", "hidden_act"),
        ("hiden_size", "hidden_size"),
        ("rms_norm_esp", "rms_norm_eps"),
        ("eos_token_ids", "eos_token_id"),
        ("rope_thetta", "rope_theta"),
        ("num_hidden_layer", "num_hidden_layers"),
        ("tie_word_embedings", "tie_word_embeddings"),
        ("num_experts", None),
        ("logits_scaling", None),
        ("moe_intermediate_size", None),
        ("v_head_dim", None),
        ("attention_multiplier", None),
        ("layerdrop", None),
        ("norm_eps", None),
        ("qk_norm", None),
        ("top_n", None),
        ("mla_bias", None),
    ],
)
def test_only_a_misspelling_is_called_one(key: str, meant: str | None) -> None:
    with pytest.raises(UsageError, match=f"unknown: {key} = 1") as caught:
        config_from_hf(old_form("llama", {key: 1}), "x")
    assert ("did you mean" in str(caught.value)) is (meant is not None)
    assert meant is None or f"did you mean {meant!r}" in str(caught.value)


@pytest.mark.parametrize("key", ["model_type", "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"])
def test_a_missing_dimension_is_named(key: str) -> None:
    data = old_form("llama", {})
    del data[key]
    with pytest.raises(UsageError, match=key):
        config_from_hf(data, "x")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "one JSON object"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b'{"model_type": "llama", "model_type": "qwen2"}', "'model_type' appears more than once"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    folder = tmp_path / "Modèle avec espaces"
    folder.mkdir()
    (folder / "config.json").write_bytes(content)
    with pytest.raises(UsageError, match=said) as caught:
        read_hf_config(folder)
    assert str(folder) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json"):
        read_hf_config(tmp_path)
