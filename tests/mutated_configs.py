"""Configs of every family with one mistake in them, drawn from a seed: a key changed, removed, renamed, contradicted,
of a wrong type, or another family's."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blockexport.models.formats.config_hf_keys import HARMLESS, NEUTRAL
from tests.transformers_models import FAMILIES

Config = dict[str, Any]
Path = tuple[str, ...]

NAMES = (
    ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),
    ("hidden_size", "n_embd", "d_model", "dim"),
    ("intermediate_size", "n_inner", "ffn_hidden_size"),
    ("num_hidden_layers", "n_layer", "num_layers"),
    ("num_attention_heads", "n_head", "num_heads"),
    ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    ("head_dim", "attention_head_dim", "kv_channels"),
    ("max_position_embeddings", "n_positions", "n_ctx", "seq_length"),
    ("hidden_act", "hidden_activation", "activation_function"),
    ("rope_parameters", "rope_scaling"),
    ("rope_theta", "rotary_emb_base", "rope_local_base_freq"),
    ("partial_rotary_factor", "rotary_pct", "rotary_dim"),
    ("sliding_window", "window_size"),
    ("layer_types", "attention_types"),
    ("logit_scale", "logits_scaling"),
    ("use_bias", "attention_bias", "use_qkv_bias", "qkv_bias"),
    ("tie_word_embeddings", "tie_embeddings"),
    ("dtype", "torch_dtype"),
    ("rope_type", "type"),
)
"""What different families, and older files, call the same thing."""

FOREIGN: Config = {
    "attention_bias": True,
    "attention_multiplier": 0.3,
    "attn_logit_softcapping": 2.0,
    "clip_qkv": 1.5,
    "embedding_multiplier": 3.0,
    "final_logit_softcapping": 2.0,
    "head_dim": 12,
    "is_causal": False,
    "layer_types": ["full_attention", "sliding_attention"],
    "logit_scale": 0.5,
    "logits_scaling": 2.0,
    "mlp_bias": True,
    "no_rope_layer_interval": 2,
    "no_rope_layers": [0, 1],
    "num_experts": 4,
    "num_key_value_heads": 2,
    "original_max_position_embeddings": 64,
    "parallel_attn": True,
    "partial_rotary_factor": 0.5,
    "qk_layernorm": True,
    "query_pre_attn_scalar": 50,
    "residual_multiplier": 0.5,
    "rope_interleaved": True,
    "rope_local_base_freq": 30.0,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    "rope_theta": 77.0,
    "rotary_pct": 0.5,
    "scale_attn_by_inverse_layer_idx": True,
    "scale_attn_weights": False,
    "sliding_window": 5,
    "sliding_window_pattern": 2,
    "tie_word_embeddings": True,
    "use_bias": True,
    "use_bidirectional_attention": True,
    "use_parallel_residual": True,
    "use_qk_norm": True,
    "use_qkv_bias": True,
    "use_sliding_window": True,
}
"""A key that some family has, with a value that changes its mathematics."""


@dataclass(frozen=True)
class Mutant:
    """A config with a mistake in it.

    Attributes:
        variant: of `FAMILIES`, whose config it was.
        kind: of the mistake.
        sound: the config before it.
        data: the config.
        names: the keys that it is about; a refusal has to name one of them.
    """

    variant: str
    kind: str
    sound: Config
    data: Config
    names: tuple[str, ...]

    def __str__(self) -> str:
        changed = {key: self.data.get(key, "absent") for key in self.sound.keys() | self.data.keys()}
        changed = {key: value for key, value in changed.items() if key not in self.sound or value != self.sound[key]}
        return f"{self.variant}: {self.kind} {'/'.join(self.names)}: {json.dumps(changed)}"


def _sound(variant: str, form: int) -> Config:
    """As transformers saves it; or only what counts; or that with RoPE's keys as they were before transformers 5."""
    data: Config = json.loads(FAMILIES[variant]().to_json_string(use_diff=False))
    if form == 0:
        return data
    data = {
        key: value
        for key, value in data.items()
        if key in ("pad_token_id", "sliding_window") or (key not in HARMLESS and value is not None)
    }
    rope = data.get("rope_parameters", {})
    if form == 1 or "rope_type" not in rope:
        return data
    del data["rope_parameters"]
    theta, partial = rope.pop("rope_theta"), rope.pop("partial_rotary_factor", None)
    names = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"} if "neox" in variant else {}
    data[names.get("rope_theta", "rope_theta")] = theta
    if partial is not None:
        data[names.get("partial_rotary_factor", "partial_rotary_factor")] = partial
    if rope["rope_type"] != "default":
        data["rope_scaling"] = rope
    return data


def _places(data: Config) -> list[Path]:
    """Every key but `model_type`, those inside of RoPE's objects included."""
    found = list[Path]()
    for key, value in data.items():
        if key in ("model_type", "id2label", "label2id"):
            continue
        found.append((key,))
        if isinstance(value, dict):
            found += [(key, *rest) for rest in _places(value)]
    return found


def _place(data: Config, chance: random.Random) -> Path:
    """One of them; seldom one without a meaning."""
    places = _places(data)
    meant = [place for place in places if place[0] not in HARMLESS | NEUTRAL.keys()]
    return chance.choice(places if chance.random() < 0.1 else meant)


def _holder(data: Config, place: Path) -> Config:
    for key in place[:-1]:
        data = data[key]
    return data


def _removed(data: Config, place: Path, chance: random.Random) -> tuple[str, ...]:
    del _holder(data, place)[place[-1]]
    return (place[-1],)


def _null(data: Config, place: Path, chance: random.Random) -> tuple[str, ...]:
    _holder(data, place)[place[-1]] = None
    return (place[-1],)


def _mistyped(data: Config, place: Path, chance: random.Random) -> tuple[str, ...]:
    holder, key = _holder(data, place), place[-1]
    value = holder[key]
    forms: list[Any] = [[value], {"value": value}, str(value), "", []]
    if isinstance(value, bool):
        forms += [int(value), str(value).lower()]
    elif isinstance(value, int):
        forms += [float(value), value + 0.5, True]
    elif isinstance(value, float):
        forms += [bool(value), f"{value:g}"]
    else:
        forms += [0, 1, True, False]
    holder[key] = chance.choice(forms)
    return (key,)


WORDS = ("gelu", "silu", "relu", "gelu_new", "quick_gelu", "linear", "dynamic", "default", "bfloat16", "nothing")


def _changed(data: Config, place: Path, chance: random.Random) -> tuple[str, ...]:
    holder, key = _holder(data, place), place[-1]
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = chance.choice((value + 1, value - 1, 2 * value, value // 2, 0, -value))
    elif isinstance(value, float):
        holder[key] = chance.choice((2 * value, value / 2, value + 1, 1.0, 0.0, -value))
    elif isinstance(value, str):
        holder[key] = chance.choice([word for word in WORDS if word != value])
    elif isinstance(value, list):
        holder[key] = chance.choice((value[::-1], value[:-1], [*value, *value[:1]], value[:1] * len(value)))
    elif isinstance(value, dict):
        holder[key] = {}
    else:
        holder[key] = chance.choice((0, 3, 16, 0.5, True, False, "gelu"))
    return (key,)


def _misspelt(data: Config, place: Path, chance: random.Random) -> tuple[str, ...]:
    holder, key = _holder(data, place), place[-1]
    at = chance.randrange(1, len(key) - 1)
    dropped, swapped = key[:at] + key[at + 1 :], key[:at] + key[at + 1] + key[at] + key[at + 2 :]
    new = chance.choice((dropped, swapped if swapped != key else dropped, f"{key}s", f"text_{key}", key.upper()))
    holder[new] = holder.pop(key)
    return new, key


def _aliases(data: Config, chance: random.Random) -> tuple[Config, str, str]:
    """What holds a key, the key, and another name for it."""
    holders = [(_holder(data, place), place[-1]) for place in _places(data)]
    named = [(holder, key, group) for holder, key in holders for group in NAMES if key in group]
    holder, key, group = chance.choice(named)
    return holder, key, chance.choice([name for name in group if name != key and name not in holder])


def _renamed(data: Config, place: Path, chance: random.Random) -> tuple[str, ...]:
    holder, key, other = _aliases(data, chance)
    holder[other] = holder.pop(key)
    return key, other


def _contradicted(data: Config, place: Path, chance: random.Random) -> tuple[str, ...]:
    """The key stays, and another name says something else; or the key is another one's contrary."""
    if chance.random() < 0.3:
        key = chance.choice([key for key in FOREIGN if key in data or key.startswith(("rope", "layer_types"))])
        data[key] = FOREIGN[key]
        return (key, "rope_parameters", "rope_theta", "sliding_window")
    holder, key, other = _aliases(data, chance)
    was = holder[key]
    holder[other] = was
    _changed(holder, (other,), chance)
    return key, other


def _foreign(data: Config, place: Path, chance: random.Random) -> tuple[str, ...]:
    key = chance.choice([key for key in FOREIGN if key not in data])
    data[key] = FOREIGN[key]
    return (key,)


KINDS: dict[str, Callable[[Config, Path, random.Random], tuple[str, ...]]] = {
    "removed": _removed,
    "null": _null,
    "of a wrong type": _mistyped,
    "changed": _changed,
    "misspelt": _misspelt,
    "renamed": _renamed,
    "contradicted": _contradicted,
    "of another family": _foreign,
}


def mutant(seed: int) -> Mutant:
    """As many seeds in a row as there are variants are of different ones; kinds and forms go round with them."""
    chance = random.Random(f"mutant {seed}")
    variant, turn = list(FAMILIES)[seed % len(FAMILIES)], seed // len(FAMILIES)
    kind = list(KINDS)[(seed + turn) % len(KINDS)]
    sound = _sound(variant, chance.randrange(3))
    data = copy.deepcopy(sound)
    names = KINDS[kind](data, _place(data, chance), chance)
    return Mutant(variant, kind, sound, data, names)
