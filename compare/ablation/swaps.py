"""Choices of the block that are swapped one at a time, each in the words of a family that has it.

A checkpoint is one of a family's, so a swap is trained where a family has the base and another one the change. Where no
family has a choice together with the rest of the baseline, both sides get what the families that have it share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import PRESETS
from blockexport.models.formats.config_hf_write import in_some_family
from blockexport.models.wording import did_you_mean

BYTES = 256
LAYERS, HEADS, GROUPS = 5, 4, 2
DEFAULT_SIZE, SIZE_STEP = 128, 8

Change = Callable[[ModelConfig], Mapping[str, Any]]
"""Fields of a config, from those that it has."""


@dataclass(frozen=True)
class Swap:
    """One change, and what both sides have beside it that the baseline lacks.

    Attributes:
        choice: what is chosen.
        words: what it is changed from, and to.
        change: the options of the changed side.
        around: those of both sides; where there are any, `around_words` says them.
    """

    choice: str
    words: str
    change: Change
    around: Change = lambda config: {}
    around_words: str = ""


def _layer_norm(config: ModelConfig) -> Mapping[str, Any]:
    return {"norm": "layer_norm", "norm_bias": True}


def _ungated(act: str) -> Change:
    """An MLP of two matrices with as many parameters as one of three."""
    return lambda config: {
        "gated_mlp": False,
        "hidden_act": act,
        "intermediate_size": config.intermediate_size * 3 // 2,
    }


def _biases(config: ModelConfig) -> Mapping[str, Any]:
    return {"qkv_bias": True, "o_bias": True, "mlp_bias": True}


def _as_learned_positions_have_it(config: ModelConfig) -> Mapping[str, Any]:
    return {
        **_layer_norm(config),
        **_ungated("gelu_pytorch_tanh")(config),
        **_biases(config),
        "num_key_value_heads": config.num_attention_heads,
        "tie_word_embeddings": True,
    }


def _as_norms_around_have_it(config: ModelConfig) -> Mapping[str, Any]:
    return {
        "norm_gain_offset": True,
        "embedding_multiplier": config.hidden_size**0.5,
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    }


def _one_normed_head(config: ModelConfig) -> Mapping[str, Any]:
    return {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": config.hidden_size, "qk_norm": True}


_WITH_LAYER_NORM = "LayerNorm"

SWAPS: Mapping[str, Swap] = {
    "layernorm": Swap("norm", "RMSNorm to LayerNorm", _layer_norm),
    "norms-around": Swap(
        "placement",
        "norms before the sublayers to norms before and after them",
        lambda config: {"norm_placement": "both"},
        _as_norms_around_have_it,
        "GeGLU, a scaled and tied embedding",
    ),
    "post-norm": Swap(
        "placement",
        "norms before the sublayers to norms after them",
        # With one head, the whole projection is that head.
        lambda config: {"norm_placement": "post", "qk_norm_over": "projection"},
        _one_normed_head,
        "QK-norm, one head",
    ),
    "gelu": Swap("MLP", "SwiGLU to GELU without a gate", _ungated("gelu_pytorch_tanh"), _layer_norm, _WITH_LAYER_NORM),
    "relu2": Swap("MLP", "SwiGLU to squared ReLU without a gate", _ungated("relu2"), _layer_norm, _WITH_LAYER_NORM),
    "geglu": Swap("MLP", "SwiGLU to GeGLU", lambda config: {"hidden_act": "gelu_pytorch_tanh"}),
    "no-positions": Swap(
        "positions",
        "RoPE to no positions at all",
        lambda config: {"layers_without_rope": tuple(range(config.num_hidden_layers))},
    ),
    "learned-positions": Swap(
        "positions",
        "RoPE to learned positions",
        lambda config: {"learned_positions": True},
        _as_learned_positions_have_it,
        "LayerNorm, GELU, biases, MHA, tied",
    ),
    "mha": Swap("heads", "GQA to MHA", lambda config: {"num_key_value_heads": config.num_attention_heads}),
    "mqa": Swap("heads", "GQA to MQA", lambda config: {"num_key_value_heads": 1}),
    "biases": Swap("biases", "no biases to biases in every projection", _biases),
    "qk-norm": Swap("QK-norm", "plain queries and keys to normed ones", lambda config: {"qk_norm": True}),
    "parallel": Swap(
        "residual",
        "attention before the MLP to both at once after one norm",
        lambda config: {"residual": "parallel_one_norm"},
        _layer_norm,
        _WITH_LAYER_NORM,
    ),
    "tied": Swap("head", "a head of its own to the embedding's table", lambda config: {"tie_word_embeddings": True}),
}
"""By name. Norms that multiply by 1 + weight begin at a weight of 0, and are trained as those that multiply by 1."""

USUAL = ("layernorm", "norms-around", "gelu", "no-positions", "mha", "biases", "qk-norm", "parallel")
"""One of each choice that is most often argued about."""
BASELINE = "baseline"


@dataclass(frozen=True)
class Variant:
    """A model that is trained: its folder's name, its config, and what `config.json` says of it."""

    name: str
    config: ModelConfig
    said: Mapping[str, Any]


@dataclass(frozen=True)
class Pairing:
    """The two models of a swap."""

    name: str
    swap: Swap
    base: Variant
    changed: Variant


def baseline(size: int, positions: int) -> ModelConfig:
    """A byte-level decoder of five layers, `size` wide: about a million parameters at 128.

    Raises:
        UsageError: `size` does not suit four heads of an even width.
    """
    if size % SIZE_STEP or size < SIZE_STEP:
        raise UsageError(f"--size {size} has to be a multiple of {SIZE_STEP}: each of {HEADS} heads has an even width")
    return replace(
        PRESETS["tiny"].config,
        vocab_size=BYTES,
        hidden_size=size,
        intermediate_size=round(size * 8 / 3 / 8) * 8,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        head_dim=size // HEADS,
        max_position_embeddings=positions,
        bos_token_id=None,
        eos_token_ids=(),
    )


def pairings(names: Iterable[str], start: ModelConfig) -> list[Pairing]:
    """The models of the swaps `names`; two that are the same model are one variant.

    Raises:
        UsageError: a name is unknown.
    """
    found: dict[ModelConfig, Variant] = {}

    def variant(name: str, config: ModelConfig) -> Variant:
        stated = in_some_family(config)
        assert stated is not None, f"no family has the options of {name}"
        named, said = stated
        # Its default is beyond the vocabulary in some families, which transformers then refuses.
        return found.setdefault(config, Variant(name, named, {**said, "pad_token_id": None}))

    variant(BASELINE, start)
    made = []
    for name in names:
        if name not in SWAPS:
            hint = did_you_mean(name, SWAPS)
            raise UsageError(f"there is no swap {name!r}{hint}; there are {', '.join(SWAPS)}")
        swap = SWAPS[name]
        around = replace(start, **swap.around(start))
        changed = replace(around, **swap.change(around))
        made.append(Pairing(name, swap, variant(f"{name}-{BASELINE}", around), variant(name, changed)))
    return made
