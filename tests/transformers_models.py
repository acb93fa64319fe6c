"""Small random models made and saved by transformers: every dimension different, weights wide enough to matter."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

POSITIONS = 512  # that the models are made for
_SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 42,
    "intermediate_size": 76,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,  # so that 1/sqrt(H) is a power of two: where it is applied then makes no rounding difference
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "sdpa",
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 5000.0,
}
_MIXED = ["sliding_attention", "full_attention"]
_GEMMA2 = {
    **_SIZES,
    "attn_implementation": "eager",  # the only one that caps scores
    "query_pre_attn_scalar": 64,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 5.0,
    "pad_token_id": None,
}
_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 5000.0}
_PLAIN = {"rope_type": "default", "rope_theta": 5000.0}
_YARN_MORE = {"attention_factor": 1.2, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}
_MINISTRAL3 = {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.3}
WINDOW = 23  # of the families that have one


_NO_EPS = {name: size for name, size in _SIZES.items() if name != "rms_norm_eps"}  # a family's own key has it
_DERIVED = {name: size for name, size in _NO_EPS.items() if name != "head_dim"} | {"hidden_size": 96}  # D / N is H

_GRANITE4: dict[str, Any] = {
    **_DERIVED,
    "intermediate_size": 52,
    "shared_intermediate_size": 76,
    "layer_types": ["full_attention"] * 2,
    "num_local_experts": 0,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0625,
    "logits_scaling": 0.5,
    "mamba_n_heads": 8,
}


class MiniCpmConfig(transformers.GraniteConfig):
    """MiniCPM's is not in transformers: its code comes with its files. It is a Granite whose multipliers follow from
    these."""

    model_type = "minicpm"

    scale_emb: float | int = 1
    scale_depth: float | int = 1
    dim_model_base: float | int = 1
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        self.embedding_multiplier = float(self.scale_emb)
        self.residual_multiplier = self.scale_depth / math.sqrt(self.num_hidden_layers)
        self.logits_scaling = self.hidden_size / self.dim_model_base
        self.attention_multiplier = (self.hidden_size // self.num_attention_heads) ** -0.5
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    def to_dict(self) -> dict[str, Any]:
        """What is saved."""
        derived = ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier", "mlp_bias")
        return {key: value for key, value in super().to_dict().items() if key not in derived}


class MiniCPMForCausalLM(transformers.GraniteForCausalLM):
    config_class = MiniCpmConfig


transformers.AutoConfig.register("minicpm", MiniCpmConfig)
transformers.AutoModelForCausalLM.register(MiniCpmConfig, MiniCPMForCausalLM)

_UNGROUPED = {name: size for name, size in _DERIVED.items() if name != "num_key_value_heads"}
_GPT2: dict[str, Any] = {
    "vocab_size": 131,
    "n_embd": 96,
    "n_inner": 76,
    "n_layer": 2,
    "n_head": 6,
    "n_positions": POSITIONS,
    "layer_norm_epsilon": 1e-4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "sdpa",
}

FAMILIES: Mapping[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**_SIZES),
    "llama-linear": lambda: transformers.LlamaConfig(
        **_SIZES, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}
    ),
    "llama-llama3": lambda: transformers.LlamaConfig(**_SIZES, rope_parameters=_LLAMA3),
    "llama-yarn": lambda: transformers.LlamaConfig(**_SIZES, rope_parameters=_YARN),
    "qwen3-yarn": lambda: transformers.Qwen3Config(**_SIZES, rope_parameters={**_YARN, **_YARN_MORE}),
    "llama-biases": lambda: transformers.LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True),
    "mistral-window": lambda: transformers.MistralConfig(**_SIZES, sliding_window=WINDOW),
    "ministral": lambda: transformers.MinistralConfig(**_SIZES, sliding_window=WINDOW, layer_types=_MIXED),
    "qwen2-mixed": lambda: transformers.Qwen2Config(
        **_SIZES, use_sliding_window=True, sliding_window=WINDOW, layer_types=_MIXED
    ),
    "qwen3": lambda: transformers.Qwen3Config(**_SIZES),
    "ernie4_5": lambda: transformers.Ernie4_5Config(**_SIZES, use_bias=True),
    "gemma": lambda: transformers.GemmaConfig(**_SIZES, pad_token_id=None),
    "gemma2": lambda: transformers.Gemma2Config(**_GEMMA2, sliding_window=WINDOW),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **{**_GEMMA2, "attn_implementation": "sdpa", "attn_logit_softcapping": None},
        sliding_window=WINDOW,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 200.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
        },
        layer_types=_MIXED,
    ),
    "granite": lambda: transformers.GraniteConfig(
        **_SIZES,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=0.0625,
        logits_scaling=0.5,
        attention_bias=True,
        mlp_bias=True,
    ),
    "olmo2": lambda: transformers.Olmo2Config(**_SIZES, pad_token_id=None),
    "olmo3": lambda: transformers.Olmo3Config(
        **_SIZES,
        sliding_window=WINDOW,
        layer_types=_MIXED,
        rope_parameters={"sliding_attention": _PLAIN, "full_attention": _YARN},
        pad_token_id=None,
    ),
    "phi3": lambda: transformers.Phi3Config(**_SIZES, sliding_window=WINDOW, pad_token_id=None),
    "phi3-longrope": lambda: transformers.Phi3Config(
        **{**_DERIVED, "max_position_embeddings": 4 * POSITIONS},
        pad_token_id=None,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 5000.0,
            "short_factor": [1.0 + 0.1 * pair for pair in range(6)],
            "long_factor": [2.0 + pair for pair in range(6)],
            "partial_rotary_factor": 0.75,
        },
        original_max_position_embeddings=POSITIONS,
    ),
    "llama-dynamic": lambda: transformers.LlamaConfig(
        **_SIZES, rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 5000.0}
    ),
    "seed_oss": lambda: transformers.SeedOssConfig(**_SIZES, attention_out_bias=True, mlp_bias=True, pad_token_id=None),
    "smollm3": lambda: transformers.SmolLM3Config(**_SIZES, no_rope_layers=[1, 0], pad_token_id=None),
    "smollm3-mixed": lambda: transformers.SmolLM3Config(
        **_SIZES,
        no_rope_layers=[0, 1],
        use_sliding_window=True,
        sliding_window=WINDOW,
        attention_bias=True,
        mlp_bias=True,
        pad_token_id=None,
    ),
    "gpt2": lambda: transformers.GPT2Config(**_GPT2),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**_UNGROUPED, layer_norm_eps=1e-4),
    "gpt_neox-serial": lambda: transformers.GPTNeoXConfig(
        **_UNGROUPED,
        use_parallel_residual=False,
        attention_bias=False,
        hidden_act="gelu_new",
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
    ),
    "phi": lambda: transformers.PhiConfig(**_DERIVED, layer_norm_eps=1e-4),
    "phi-qk-norm": lambda: transformers.PhiConfig(**_DERIVED, qk_layernorm=True),
    "cohere": lambda: transformers.CohereConfig(**_NO_EPS, logit_scale=1.5, pad_token_id=None),
    "nemotron": lambda: transformers.NemotronConfig(**_NO_EPS, norm_eps=1e-4, attention_bias=True, mlp_bias=True),
    "olmo": lambda: transformers.OlmoConfig(**_DERIVED, pad_token_id=None),
    "arcee": lambda: transformers.ArceeConfig(**_SIZES, attention_bias=True, mlp_bias=True),
    "cohere2": lambda: transformers.Cohere2Config(
        **_DERIVED, sliding_window=WINDOW, layer_types=_MIXED, logit_scale=0.5, pad_token_id=None
    ),
    "cwm": lambda: transformers.CwmConfig(**_SIZES, sliding_window=WINDOW, layer_types=_MIXED, rope_parameters=_LLAMA3),
    "exaone": lambda: transformers.ExaoneConfig(**_SIZES, pad_token_id=None),
    "exaone4": lambda: transformers.Exaone4Config(**_SIZES, sliding_window=WINDOW, layer_types=_MIXED),
    "exaone4-full": lambda: transformers.Exaone4Config(
        **_SIZES, sliding_window=None, layer_types=["full_attention"] * 2
    ),
    "glm": lambda: transformers.GlmConfig(**_SIZES, pad_token_id=None),
    "glm4": lambda: transformers.Glm4Config(**_SIZES, attention_bias=True, pad_token_id=None),
    "granite4": lambda: transformers.GraniteMoeHybridConfig(**_GRANITE4, position_embedding_type="rope"),
    "granite4-no-positions": lambda: transformers.GraniteMoeHybridConfig(**_GRANITE4, attention_bias=True),
    "helium": lambda: transformers.HeliumConfig(**{**_SIZES, "hidden_size": 96}, pad_token_id=None),
    "hunyuan": lambda: transformers.HunYuanDenseV1Config(**_SIZES, attention_bias=True),
    "hunyuan-alpha": lambda: transformers.HunYuanDenseV1Config(
        **_SIZES, rope_parameters={"rope_type": "dynamic", "alpha": 30.0, "factor": 1.0, "rope_theta": 5000.0}
    ),
    "hyperclovax": lambda: transformers.HyperCLOVAXConfig(
        **_DERIVED, embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.0625, logits_scaling=1.5
    ),
    "internlm3": lambda: transformers.InternLM3Config(
        **_DERIVED, head_dim=16, attention_bias=True, mlp_bias=True, pad_token_id=None
    ),
    "ministral3": lambda: transformers.Ministral3Config(**_SIZES, rope_parameters=_MINISTRAL3, pad_token_id=None),
    "ministral3-window": lambda: transformers.Ministral3Config(
        **_SIZES, rope_parameters={**_MINISTRAL3, "truncate": False}, sliding_window=WINDOW, pad_token_id=None
    ),
    "minicpm": lambda: MiniCpmConfig(**_DERIVED, scale_emb=12, scale_depth=1.4, dim_model_base=64, attention_bias=True),
    "iquestcoder": lambda: transformers.IQuestCoderConfig(**_DERIVED, head_dim=16),
    "jais2": lambda: transformers.Jais2Config(**_NO_EPS, layer_norm_eps=1e-4),
    "vaultgemma": lambda: transformers.VaultGemmaConfig(**_GEMMA2, sliding_window=WINDOW),
    "starcoder2": lambda: transformers.Starcoder2Config(**_NO_EPS, norm_epsilon=1e-4),
    "starcoder2-window": lambda: transformers.Starcoder2Config(
        **_NO_EPS, use_bias=False, sliding_window=WINDOW, hidden_act="gelu"
    ),
    "stablelm": lambda: transformers.StableLmConfig(**_DERIVED, layer_norm_eps=1e-4),
    "stablelm-parallel": lambda: transformers.StableLmConfig(
        **_DERIVED,
        use_qkv_bias=True,
        use_parallel_residual=True,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
    ),
}
"""A configuration of each family, and of each option of it that changes the mathematics."""


def sampled(plain: Collection[str]) -> list[Any]:
    """Every configuration as a parameter of a test; those not of `plain` in the full run alone."""
    assert set(plain) <= FAMILIES.keys()
    return [name if name in plain else pytest.param(name, marks=pytest.mark.full) for name in FAMILIES]


def make_model(family: str, *, tied: bool = False, seed: int = 0, windowed: bool = True) -> Any:
    """A transformers model in float32: weights and biases of standard deviation 0.2, norm gains 0.25 to 1.75.

    The same weights without the family's window where not `windowed`.
    """
    config = FAMILIES[family]()
    if not windowed:
        config.sliding_window = None
        if hasattr(config, "layer_types"):
            config.layer_types = ["full_attention"] * config.num_hidden_layers
    config.tie_word_embeddings = tied
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    # A norm that multiplies by 1 + weight starts with zeros.
    gain = getattr(getattr(model.base_model, "norm", None), "weight", None)
    lowest = 0.25 - float(gain is not None and not gain.any())
    for name, parameter in model.named_parameters():
        if name.endswith("weight") and parameter.ndim == 1:
            parameter.copy_(torch.rand(parameter.shape, generator=generator) * 1.5 + lowest)
        else:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def save_model(model: Any, folder: Path, *, dtype: torch.dtype = torch.float32, sharded: bool = False) -> Any:
    """Save in `dtype`; returns the model that transformers reads back, in float32."""
    model.to(dtype).save_pretrained(folder, max_shard_size="20KB" if sharded else "1GB")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)


def some_ids(length: int, rows: int = 2, seed: int = 5) -> torch.Tensor:
    """Random token ids [rows, length]."""
    return torch.randint(0, _SIZES["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(seed))
