"""Checkpoints of the families whose blocks have more options, drawn from a seed: see `any_model.py`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from blockexport.models.config.model_config import LAYER_TYPES, ModelConfig, RopeScaling
from blockexport.models.families.every_family import FAMILIES
from tests import any_model
from tests.any_model import Drawn, draw

Options = dict[str, Any]
_EVERY_BIAS = dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), True)


def _biases(chance: random.Random) -> Options:
    there = chance.random() < 0.4
    return {"qkv_bias": there, "o_bias": there}


def _windows(chance: random.Random, layers: int) -> Options:
    types = tuple(chance.choice(LAYER_TYPES) for _ in range(layers))
    return {"sliding_window": chance.randint(2, 30), "layer_types": types} if "sliding_attention" in types else {}


def _caps(chance: random.Random) -> Options:
    keys = ("attn_logit_softcapping", "final_logit_softcapping")
    return {key: chance.choice((None, 2.0, 5.0, 30.0)) for key in keys}


def _gemma(chance: random.Random, layers: int) -> Options:
    return {"hidden_act": chance.choice(("silu", "gelu_pytorch_tanh")), **_biases(chance)}


def _gemma2(chance: random.Random, layers: int) -> Options:
    act = chance.choice(("silu", "gelu", "gelu_pytorch_tanh"))
    scale = chance.choice((16, 64, 100)) ** -0.5
    return {"hidden_act": act, "query_scale": scale, **_biases(chance), **_caps(chance), **_windows(chance, layers)}


def _gemma3(chance: random.Random, layers: int) -> Options:
    scaling = chance.choice((None, RopeScaling("linear", factor=8.0)))
    local = chance.choice((300.0, 10_000.0))
    more = {"qk_norm": True, "rope_scaling": scaling, "sliding_rope_theta": local, "attn_logit_softcapping": None}
    return {**_gemma2(chance, layers), **more}


def _granite(chance: random.Random, layers: int) -> Options:
    return {
        **_biases(chance),
        "mlp_bias": chance.random() < 0.4,
        "embedding_multiplier": chance.choice((1.0, 12.0)),
        "residual_multiplier": chance.choice((1.0, 0.22, 0.5)),
        "query_scale": chance.choice((0.0625, 0.3, 1.0)),
        "logits_multiplier": chance.choice((1.0, 0.125, 1.0 / 6.0)),
    }


def _ministral3(chance: random.Random, layers: int) -> Options:
    yarn = RopeScaling("yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=1.1)
    growth = {"query_growth": 0.4, "query_growth_length": 16} if chance.random() < 0.8 else {}
    return {"rope_scaling": yarn, **growth, **_some_window(chance, layers)}


def _minicpm(chance: random.Random, layers: int) -> Options:
    return {**_granite(chance, layers), "mlp_bias": False}


def _hunyuan(chance: random.Random, layers: int) -> Options:
    scaling = chance.choice((None, RopeScaling("ntk_alpha", factor=30.0)))
    return {"qk_norm": True, "rope_scaling": scaling, **_biases(chance)}


def _olmo2(chance: random.Random, layers: int) -> Options:
    return {"qk_norm": True, **_biases(chance)}


def _olmo3(chance: random.Random, layers: int) -> Options:
    yarn = RopeScaling("yarn", factor=4.0, original_max_position_embeddings=32, attention_factor=1.1)
    scaling = chance.choice((None, yarn))
    more = {"sliding_rope_theta": 500_000.0, "rope_scaling": scaling}
    return {**_olmo2(chance, layers), **_windows(chance, layers), **more}


def _rotated(chance: random.Random, options: Options) -> Options:
    """RoPE on all dimensions of a head, or on some of them."""
    return {**options, "rotary_dim": chance.choice((None, 2, 4))}


def _cohere(chance: random.Random, layers: int) -> Options:
    return {"logits_multiplier": chance.choice((1.0, 0.0625, 0.5)), **_biases(chance)}


def _all_biases(chance: random.Random, layers: int) -> Options:
    return dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), chance.random() < 0.5)


def _gpt2(chance: random.Random, layers: int) -> Options:
    act = chance.choice(("gelu_pytorch_tanh", "gelu", "relu2"))
    return {"learned_positions": True, "hidden_act": act, **_EVERY_BIAS}


def _gpt_neox(chance: random.Random, layers: int) -> Options:
    more = {"hidden_act": chance.choice(("gelu", "gelu_pytorch_tanh")), "mlp_bias": True, **_biases(chance)}
    return _rotated(chance, {"residual": chance.choice(("parallel", "serial")), **more})


def _nemotron(chance: random.Random, layers: int) -> Options:
    act = chance.choice(("relu2", "silu"))
    return _rotated(chance, {"hidden_act": act, **_biases(chance), "mlp_bias": chance.random() < 0.5})


def _olmo(chance: random.Random, layers: int) -> Options:
    return _biases(chance)


def _phi(chance: random.Random, layers: int) -> Options:
    act = chance.choice(("gelu_pytorch_tanh", "gelu"))
    return _rotated(chance, {"hidden_act": act, "qk_norm": chance.random() < 0.3, **_EVERY_BIAS})


def _phi3(chance: random.Random, layers: int) -> Options:
    return _rotated(chance, _some_window(chance, layers))


def _some_window(chance: random.Random, layers: int) -> Options:
    """One for every layer, or none."""
    window = {"sliding_window": chance.randint(2, 30), "layer_types": ("sliding_attention",) * layers}
    return window if chance.random() < 0.5 else {}


def _smollm3(chance: random.Random, layers: int) -> Options:
    unturned = tuple(layer for layer in range(layers) if chance.random() < 0.4)
    more = {**_biases(chance), "mlp_bias": chance.random() < 0.4, **_windows(chance, layers)}
    return {"layers_without_rope": unturned, **more}


def _stablelm(chance: random.Random, layers: int) -> Options:
    residual = chance.choice(("serial", "parallel_one_norm"))
    return _rotated(chance, {"residual": residual, "qkv_bias": chance.random() < 0.5})


def _starcoder2(chance: random.Random, layers: int) -> Options:
    act = chance.choice(("gelu_pytorch_tanh", "gelu"))
    return {"hidden_act": act, **_all_biases(chance, layers), **_some_window(chance, layers)}


def _seed_oss(chance: random.Random, layers: int) -> Options:
    return {key: chance.random() < 0.5 for key in ("qkv_bias", "o_bias", "mlp_bias")}


OPTIONS: dict[str, Callable[[random.Random, int], Options]] = {
    "cohere": _cohere,
    "ernie4_5": _all_biases,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "granite": _granite,
    "hunyuan_v1_dense": _hunyuan,
    "minicpm": _minicpm,
    "ministral": _windows,
    "ministral3": _ministral3,
    "nemotron": _nemotron,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "phi": _phi,
    "phi3": _phi3,
    "seed_oss": _seed_oss,
    "smollm3": _smollm3,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}

NEWER = [name for name in FAMILIES if name not in any_model.FAMILIES]
"""One that is not among `OPTIONS` yet is drawn as it is by default."""

_UNGROUPED = ("gpt2", "gpt_neox")
_DERIVED = (*_UNGROUPED, "olmo", "phi", "stablelm")  # whose heads are D / N wide


def draw_newer(seed: int, drawn: Drawn | None = None) -> Drawn:
    """As many seeds in a row as there are families are of different ones, and twice as many of both precisions of each;
    the rest is chance.

    Args:
        seed: of the model.
        drawn: another one, which becomes a model of the seed's family; one without further options unless given.
    """
    chance = random.Random(f"newer {seed}")
    family = NEWER[seed % len(NEWER)]
    precision = draw(4 * (seed % len(NEWER) + seed // len(NEWER))).precision
    plain = drawn or replace(draw(4 * seed), in_gguf=False, precision=precision)
    bare: Options = {"qkv_bias": False, "o_bias": False, "mlp_bias": False, "qk_norm": False, "sliding_window": None}
    config: ModelConfig = replace(plain.config, model_type=family, rope_scaling=None, layer_types=(), **bare)
    if family in _DERIVED:
        config = replace(config, hidden_size=config.num_attention_heads * config.head_dim)
    if family in _UNGROUPED:
        config = replace(config, num_key_value_heads=config.num_attention_heads)
    options = OPTIONS[family](chance, config.num_hidden_layers) if family in OPTIONS else {}
    return replace(plain, config=FAMILIES[family].completed(replace(config, **options)))
