"""Checkpoints of the families whose blocks have more options, drawn from a seed: see `any_model.py`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from blockexport.models.config.model_config import LAYER_TYPES, ModelConfig, RopeScaling
from blockexport.models.families.every_family import FAMILIES
from tests.any_model import Drawn, draw

Options = dict[str, Any]


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


def _olmo2(chance: random.Random, layers: int) -> Options:
    return {"qk_norm": True, **_biases(chance)}


def _olmo3(chance: random.Random, layers: int) -> Options:
    yarn = RopeScaling("yarn", factor=4.0, original_max_position_embeddings=32, attention_factor=1.1)
    scaling = chance.choice((None, yarn))
    more = {"sliding_rope_theta": 500_000.0, "rope_scaling": scaling}
    return {**_olmo2(chance, layers), **_windows(chance, layers), **more}


def _seed_oss(chance: random.Random, layers: int) -> Options:
    return {key: chance.random() < 0.5 for key in ("qkv_bias", "o_bias", "mlp_bias")}


OPTIONS: dict[str, Callable[[random.Random, int], Options]] = {
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "granite": _granite,
    "ministral": _windows,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "seed_oss": _seed_oss,
}


def draw_newer(seed: int, drawn: Drawn | None = None) -> Drawn:
    """Eight seeds in a row are of eight families, and sixteen of both precisions of each; the rest is chance.

    Args:
        seed: of the model.
        drawn: another one, which becomes a model of the seed's family; one without further options unless given.
    """
    chance = random.Random(f"newer {seed}")
    family = list(OPTIONS)[seed % len(OPTIONS)]
    plain = drawn or replace(draw(4 * seed), in_gguf=False, precision=draw(4 * (seed // 8)).precision)
    bare: Options = {"qkv_bias": False, "o_bias": False, "mlp_bias": False, "qk_norm": False, "sliding_window": None}
    config: ModelConfig = replace(plain.config, model_type=family, rope_scaling=None, layer_types=(), **bare)
    config = replace(config, **OPTIONS[family](chance, config.num_hidden_layers))
    return replace(plain, config=FAMILIES[family].completed(config))
