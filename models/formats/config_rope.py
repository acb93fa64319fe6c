"""RoPE settings of a Hugging Face `config.json`, in the old form (`rope_theta`, `rope_scaling`) and the new
(`rope_parameters`), resolved as transformers' modeling_rope_utils.py resolves them.

Where transformers would let one of two disagreeing keys win, both are named and the config is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import LAYER_TYPES, RopeScaling
from blockexport.models.families.family import Family
from blockexport.models.strict_json import shown

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope", "dynamic")


class Rope(NamedTuple):
    """The fields of `ModelConfig` about RoPE."""

    rope_theta: float
    rope_scaling: RopeScaling | None
    sliding_rope_theta: float | None = None
    rotary_dim: int | None = None


def no_rope(fields: RawFields) -> Rope:
    """That of a family without it. Raises UsageError where a key says something else."""
    for key in ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"):
        fields.only(key, (None,), "this family adds learned vectors of the positions and has no RoPE")
    return Rope(10_000.0, None)


def read_rope(fields: RawFields, max_position: int, family: Family, head_dim: int) -> Rope:
    """RoPE's keys. Raises UsageError for an unknown RoPE type or keys that disagree."""
    if family.sliding_rope_theta is None:
        default = family.partial_rotary_factor
        original = family.original_max_position_embeddings
        theta, scaling, factor = rope_from_hf(
            fields, max_position, family.rope_theta, default, original, family.rope_keys
        )
        if scaling is not None and scaling.rope_type == "ntk_alpha" and head_dim == 2:
            raise fields.error("head_dim is 2, and RoPE's alpha is raised to head_dim / (head_dim - 2)")
        return Rope(theta, scaling, rotary_dim=_rotary_dim(fields, head_dim, factor))
    return _rope_by_layer_type(fields, max_position, family, family.sliding_rope_theta)


def _rope_by_layer_type(fields: RawFields, max_position: int, family: Family, local_theta: float) -> Rope:
    """In the old form `rope_theta`, `rope_scaling` and a key for the sliding layers' base; in the new one
    `rope_parameters` has an object for each type of layer."""
    theta, local_key = family.rope_theta, family.sliding_rope_key
    stated = fields.get("rope_parameters")
    if stated is None:
        local = local_theta if local_key is None else fields.number(local_key, local_theta)
        return Rope(*rope_from_hf(fields, max_position, theta)[:2], local)
    if old := [key for key in ("rope_theta", "rope_scaling", local_key) if key and fields.get(key) is not None]:
        raise fields.error(f"there are both rope_parameters and {', '.join(old)}; keep the form that is right")
    if not isinstance(stated, Mapping) or set(stated) - set(LAYER_TYPES):
        wanted = " and ".join(LAYER_TYPES)
        raise fields.error(f"rope_parameters is {shown(stated)}; it must have an object for {wanted}")
    (full, scaling), (local_stated, local_scaling) = (
        _parse(fields, f"rope_parameters.{kind}", stated.get(kind) or {}, None, max_position, False)[:2]
        for kind in LAYER_TYPES
    )
    if local_scaling is not None:
        raise fields.error("rope_parameters.sliding_attention is scaled, which is only implemented for full_attention")
    return Rope(theta if full is None else full, scaling, local_theta if local_stated is None else local_stated)


def _rotary_dim(fields: RawFields, head_dim: int, factor: float) -> int | None:
    """How many of a head's dimensions are turned, as transformers rounds it; None where all are."""
    turned = int(head_dim * factor)
    if factor > 1 or turned < 2 or turned % 2:
        width = f"{head_dim} dimensions" + (f" ({fields.said('head_dim')})" if fields.has("head_dim") else "")
        said = f"{fields.told('partial_rotary_factor', factor)}, which turns {turned} of a head's {width}"
        raise fields.error(f"{said}; RoPE turns pairs of them, so it must be even, and from 2 to {head_dim}")
    return None if turned == head_dim else turned


def rope_from_hf(
    fields: RawFields,
    max_position: int,
    default_theta: float,
    default_factor: float | None = None,
    default_original: int | None = None,
    more: frozenset[str] = frozenset(),
) -> tuple[float, RopeScaling | None, float]:
    """RoPE's base, how the frequencies are stretched, and the share of a head that is turned.

    Args:
        fields: of the config.
        max_position: `max_position_embeddings`.
        default_theta: the base where no key says it.
        default_factor: `partial_rotary_factor` where no key says it; None: the family turns whole heads.
        default_original: the length before scaling where no key beside the scaling says it.
        more: keys that the family has in there beside those of the type.

    Raises:
        UsageError: an unknown RoPE type, or keys that disagree.
    """
    outer_original = fields.optional_integer("original_max_position_embeddings", default_original)
    thetas: list[tuple[str, float]] = []
    factors: list[tuple[str, float]] = []
    scalings: list[RopeScaling | None] = []
    for key in ("rope_parameters", "rope_scaling"):
        value = fields.get(key)
        if value is None or value == {}:
            continue
        if not isinstance(value, Mapping):
            raise fields.error(f"{key} is {shown(value)}; it must be an object or null")
        _refuse_per_layer_type(fields, key, value)
        partial = default_factor is not None
        theta, scaling, factor = _parse(fields, key, value, outer_original, max_position, partial, more)
        scalings.append(scaling)
        thetas += [] if theta is None else [(f"{key}.rope_theta", theta)]
        factors += [] if factor is None else [(f"{key}.partial_rotary_factor", factor)]
    if len(set(scalings)) > 1:
        raise fields.error(
            f"rope_parameters {shown(fields.get('rope_parameters'))} and rope_scaling "
            f"{shown(fields.get('rope_scaling'))} disagree; keep the one that is right"
        )
    fields.used.add("rope_theta")
    if fields.has("rope_theta"):
        thetas.append((fields.said("rope_theta"), fields.number("rope_theta")))
    if default_factor is not None and fields.has("partial_rotary_factor"):
        factors.append((fields.said("partial_rotary_factor"), fields.number("partial_rotary_factor")))
    theta, factor = _agreed(fields, thetas, default_theta), _agreed(fields, factors, default_factor or 1.0)
    return theta, scalings[0] if scalings else None, factor


def _agreed(fields: RawFields, stated: Sequence[tuple[str, float]], default: float) -> float:
    """The one value that keys state, each by its name."""
    for name, value in stated[1:]:
        if value != stated[0][1]:
            raise fields.error(f"{stated[0][0]} is {stated[0][1]} and {name} is {value}; keep the one that is right")
    return stated[0][1] if stated else default


def _refuse_per_layer_type(fields: RawFields, key: str, value: Mapping[str, Any]) -> None:
    """Every family here has one RoPE. transformers 5 ignores an object per layer type in llama and mistral, and takes
    the default RoPE; in qwen2 and qwen3 it stops at the key."""
    nested = [layer_type for layer_type in value if layer_type in LAYER_TYPES]
    if nested:
        raise fields.error(
            f"{key} is {shown(value)}, parameters per layer type ({', '.join(nested)}), which a family with one RoPE "
            "for all layers does not have: transformers ignores them or stops. Write the parameters directly into "
            f"{key}, if they are meant for every layer"
        )


def _parse(
    fields: RawFields,
    key: str,
    value: Mapping[str, Any],
    outer: int | None,
    max_position: int,
    partial: bool,
    more: frozenset[str] = frozenset(),
) -> tuple[float | None, RopeScaling | None, float | None]:
    """The base of the frequencies (None: not stated here), how they are stretched (None: not at all), and the share of
    a head that is turned (None: not stated here, or the family turns whole heads)."""
    inner = RawFields({f"{key}.{name}": item for name, item in value.items()}, fields.where)
    rope_type = _rope_type(inner, key)
    theta = inner.number(f"{key}.rope_theta") if inner.has(f"{key}.rope_theta") else None
    name, factor = f"{key}.partial_rotary_factor", None
    if not partial:
        inner.only(name, (1, 1.0), "this family turns whole heads")
    elif inner.has(name):
        factor = inner.number(name)
    scaling: RopeScaling | None = None
    inner.used |= {f"{key}.{name}" for name in more}
    if rope_type == "dynamic" and "alpha" in more and inner.data.get(f"{key}.alpha"):
        scaling = RopeScaling("ntk_alpha", factor=inner.number(f"{key}.alpha"))
        inner.only(f"{key}.factor", (1, 1.0), "alpha takes its place")
    elif rope_type == "linear":
        scaling = RopeScaling("linear", factor=inner.number(f"{key}.factor"))
        inner.get(f"{key}.original_max_position_embeddings")  # linear scaling treats every position alike
    elif rope_type == "llama3":
        scaling = _llama3(inner, key, outer, max_position)
    elif rope_type == "yarn":
        scaling = _yarn(inner, key, outer, max_position)
    elif rope_type == "longrope":
        scaling = _longrope(inner, key, outer, max_position)
    elif rope_type == "dynamic":
        scaling = RopeScaling("dynamic", factor=inner.number(f"{key}.factor"))
    stated = inner.has(f"{key}.rope_type") or inner.has(f"{key}.type")
    if unused := inner.unused():
        raise fields.error(
            f"{', '.join(unused)} means nothing to RoPE of type {rope_type!r}"
            f"{'' if stated else ', which an object without a rope_type has'}; remove it, or correct the type"
        )
    return theta, scaling, factor


def _rope_type(inner: RawFields, key: str) -> str:
    new, old = f"{key}.rope_type", f"{key}.type"
    rope_type = inner.text(new, inner.text(old, "default"))
    if inner.has(old) and inner.text(old) != rope_type:
        raise inner.error(f"{new} is {rope_type!r} and {old} is {inner.text(old)!r}; keep the one that is right")
    if rope_type not in ROPE_TYPES:
        said = new if inner.has(new) else old
        raise inner.error(f"{said} is {rope_type!r}, which is not implemented; supported are {', '.join(ROPE_TYPES)}")
    return rope_type


def _yarn(inner: RawFields, key: str, outer: int | None, max_position: int) -> RopeScaling:
    """The factor of cosines and sines is stated, or follows from the factor of the context as the paper has it."""
    factor = inner.number(f"{key}.factor")
    stated = inner.number(f"{key}.attention_factor") if inner.data.get(f"{key}.attention_factor") is not None else None
    inner.used.add(f"{key}.attention_factor")
    mscales = [_optional(inner, f"{key}.{name}", 0.0) for name in ("mscale", "mscale_all_dim")]
    implied = mscale(factor, 1.0)
    if all(mscales):
        implied = mscale(factor, mscales[0]) / mscale(factor, mscales[1])
    fast, slow = _optional(inner, f"{key}.beta_fast", 32.0), _optional(inner, f"{key}.beta_slow", 1.0)
    if fast < slow:
        raise inner.error(
            f"{key}.beta_fast is {fast:g} and {key}.beta_slow is {slow:g}; the first must be the larger one"
        )
    return RopeScaling(
        "yarn",
        factor=factor,
        original_max_position_embeddings=_original(inner, key, outer, max_position),
        beta_fast=fast,
        beta_slow=slow,
        truncate=inner.flag(f"{key}.truncate", True),
        attention_factor=implied if stated is None else stated,
    )


def _longrope(inner: RawFields, key: str, outer: int | None, max_position: int) -> RopeScaling:
    """The factors of each pair up to the old context; those beyond it belong to a table that no cache can have."""
    short, long = (tuple(inner.items(f"{key}.{name}_factor", float)) for name in ("short", "long"))
    if len(short) != len(long) or not all(math.isfinite(one) and one > 0 for one in (*short, *long)):
        raise inner.error(f"{key}.short_factor and {key}.long_factor must have as many numbers each, all above zero")
    original = _original(inner, key, outer, max_position)
    factor = _optional(inner, f"{key}.factor", max_position / original)
    implied = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return RopeScaling(
        "longrope",
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=_optional(inner, f"{key}.attention_factor", implied),
        freq_factors=short,
    )


def _optional(inner: RawFields, key: str, default: float) -> float:
    """A number; null, and 0, are as good as absent."""
    value = inner.get(key)
    return default if value is None or value == 0 else inner.number(key)


def mscale(factor: float, weight: float) -> float:
    """What YaRN multiplies cosines and sines by for a context so many times as long."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _original(inner: RawFields, key: str, outer: int | None, max_position: int) -> int:
    """The old context: stated here, beside, or the model's own range."""
    name = f"{key}.original_max_position_embeddings"
    original = inner.integer(name, outer or max_position)
    if outer is not None and original != outer:
        raise inner.error(
            f"{name} is {original} and original_max_position_embeddings is {outer}; keep the one that is right"
        )
    return original


def _llama3(inner: RawFields, key: str, outer: int | None, max_position: int) -> RopeScaling:
    low, high = inner.number(f"{key}.low_freq_factor"), inner.number(f"{key}.high_freq_factor")
    if low >= high:
        raise inner.error(
            f"{key}.low_freq_factor is {low} and {key}.high_freq_factor is {high}; the first must be the smaller one"
        )
    return RopeScaling(
        "llama3",
        factor=inner.number(f"{key}.factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=_original(inner, key, outer, max_position),
    )
