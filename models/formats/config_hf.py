"""`config.json` of Hugging Face into a ModelConfig, for every family.

An absent key has the default transformers gives it in that family's configuration class. Every key is read, listed as
harmless in `config_hf_keys.py` or by the family, or refused by name: one that is skipped in silence may change what the
model computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blockexport.models.config.config_fields import MAX_LAYERS, HeadKeys, RawFields, check_heads, derived_head_dim
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import FAMILIES
from blockexport.models.families.family import Family
from blockexport.models.families.left_out import LEFT_OUT
from blockexport.models.formats.config_hf_keys import HARMLESS, NEUTRAL
from blockexport.models.formats.config_rope import no_rope, read_rope
from blockexport.models.formats.packing import KEY, read_packing
from blockexport.models.formats.text_part import read_config_json
from blockexport.models.strict_json import shown

DTYPES = ("float32", "float16", "bfloat16", "float64")
HEAD_KEYS = HeadKeys("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")


def read_hf_config(folder: Path, *, text_only: bool = False) -> ModelConfig:
    """The `config.json` of a folder; see `read_config_json`, too.

    Raises UsageError when it is missing, is not a JSON object, or is refused.
    """
    return config_from_hf(read_config_json(folder, text_only=text_only), str(folder / "config.json"))


def config_from_hf(data: Mapping[str, Any], where: str) -> ModelConfig:
    """Read a parsed `config.json`.

    Args:
        data: the JSON object.
        where: the file's name, for messages.

    Raises:
        UsageError: a key is missing, of the wrong type or range, unknown, in conflict with another, or asks for
            something that is not implemented.
    """
    family = _family(RawFields(data, where))
    fields = RawFields(_by_first_names(data, family, where), where, family.keys)
    fields.get("model_type")
    hidden_size = fields.integer("hidden_size")
    layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    heads = fields.integer("num_attention_heads", family.num_attention_heads)
    key_value_heads = fields.optional_integer("num_key_value_heads", family.num_key_value_heads) or heads
    head_dim = fields.optional_integer("head_dim", family.head_dim) or derived_head_dim(
        fields, HEAD_KEYS, hidden_size, heads
    )
    check_heads(fields, HEAD_KEYS, heads, key_value_heads, head_dim)
    max_position_embeddings = fields.integer("max_position_embeddings", family.max_position_embeddings)
    rope = no_rope(fields) if family.learned_positions else read_rope(fields, max_position_embeddings, family, head_dim)
    by_layer = family.read_layers(fields, layers)
    qkv_bias, o_bias, mlp_bias = _biases(fields, family)
    config = ModelConfig(
        model_type=family.model_type,
        vocab_size=fields.integer("vocab_size", family.vocab_size),
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(fields, family, hidden_size),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=fields.number("rms_norm_eps", family.rms_norm_eps),
        **rope._asdict(),
        hidden_act=family.read_act(fields),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        qk_norm=family.qk_norm,
        learned_positions=family.learned_positions,
        tie_word_embeddings=fields.flag("tie_word_embeddings", family.tie_word_embeddings),
        dtype=_dtype(fields),
        bos_token_id=fields.optional_integer("bos_token_id", family.bos_token_id, minimum=0),
        eos_token_ids=fields.token_ids("eos_token_id", family.eos_token_ids),
        **by_layer._asdict(),
    )
    config = family.completed(replace(config, **family.read_options(fields)))
    factors = () if config.rope_scaling is None else config.rope_scaling.freq_factors
    if factors and len(factors) != config.turned_dims // 2:
        pairs = config.turned_dims // 2
        raise fields.error(f"LongRoPE has {len(factors)} factors, and a head has {pairs} pairs of dimensions that turn")
    _refuse_the_rest(fields, family)
    return config


def _family(fields: RawFields) -> Family:
    model_type = fields.text("model_type")
    if model_type not in FAMILIES:
        why = f": {LEFT_OUT[model_type]}" if model_type in LEFT_OUT else ""
        raise fields.error(
            f"model_type {model_type!r} is not implemented{why}; supported are {', '.join(FAMILIES)}. CONTRIBUTING.md "
            "says how to add a family"
        )
    return FAMILIES[model_type]


def _by_first_names(data: Mapping[str, Any], family: Family, where: str) -> dict[str, Any]:
    """The config with each key under the first of its names, and RoPE's object where the family has a default of it."""
    found = dict[str, Any]()
    for name, value in data.items():
        key = family.other_keys.get(name, name)
        if key in found and found[key] != value:
            other = next(other for other in data if other != name and family.other_keys.get(other, other) == key)
            raise UsageError(
                f"{where}: {name} is {shown(value)} and {other}, which is another name of it, is {shown(found[key])}; "
                "keep the one that is right"
            )
        found[key] = value
    if family.rope_default is not None and not (found.get("rope_parameters") or found.get("rope_scaling")):
        found["rope_parameters"] = dict(family.rope_default)
    return found


def _dtype(fields: RawFields) -> str:
    """The new key `dtype` or the old `torch_dtype`; float32 when neither is given."""
    given = {key: fields.get(key) for key in ("dtype", "torch_dtype")}
    for key, value in given.items():
        if value is not None and value not in DTYPES:
            raise fields.error(f"{key} is {shown(value)}; supported are {', '.join(DTYPES)}")
    new, old = given["dtype"], given["torch_dtype"]
    if new and old and new != old:
        raise fields.error(f"dtype is {new!r} and torch_dtype is {old!r}; keep the one that is right")
    return str(new or old or "float32")


def _intermediate_size(fields: RawFields, family: Family, hidden_size: int) -> int:
    if family.mlp_ratio is None:
        return fields.integer("intermediate_size")
    return fields.optional_integer("intermediate_size") or family.mlp_ratio * hidden_size


def _biases(fields: RawFields, family: Family) -> tuple[bool, bool, bool]:
    """Whether q, k, v have biases, whether o has one, and whether the MLP has them."""
    if family.every_bias:
        for key in ("attention_bias", "mlp_bias"):
            fields.only(key, (True,), f"{family.model_type} has biases in all its projections")
        return True, True, True
    stated = {key: fields.flag(key, family.bias_default) for key in family.bias_keys}
    if "mlp_bias" not in stated:
        fields.only("mlp_bias", (False,), f"{family.model_type} has no biases in its MLP")
    if "attention_bias" not in stated:
        always = "always has biases on q, k and v, and none on o"
        why = f"{family.model_type} {always if family.qkv_bias else 'has no biases in its attention'}"
        fields.only("attention_bias", (family.qkv_bias,), why)
    attention = stated.get("attention_bias", False)
    return attention or family.qkv_bias, attention, stated.get("mlp_bias", False)


def _refuse_the_rest(fields: RawFields, family: Family) -> None:
    """Let the harmless keys pass and name every other."""
    fields.used |= family.ignored.keys()
    fields.used.add(KEY)
    read_packing(fields.data, fields.where)  # of the checkpoint's tensors, and not of the architecture
    for key, (allowed, why) in NEUTRAL.items():
        if key not in family.ignored and key not in fields.used:
            fields.only(key, allowed, why)
    unknown = [key for key in fields.unused() if key not in HARMLESS]
    if unknown:
        raise fields.unknown("", unknown, lambda key: _meant(key, fields.used | HARMLESS))


def _meant(key: str, known: Iterable[str]) -> str:
    """A hint at the known key of which this is a misspelling: one word of it with a letter too many, too few, or wrong,
    or two letters swapped. Names that are merely alike (num_experts, num_beams) mean other things."""
    close = next((other for other in sorted(known) if _is_misspelt(key.split("_"), other.split("_"))), None)
    return f" (did you mean {close!r}?)" if close else ""


def _is_misspelt(words: list[str], others: list[str]) -> bool:
    if len(words) != len(others):
        return False
    unlike = [pair for pair in zip(words, others, strict=True) if pair[0] != pair[1]]
    return len(unlike) == 1 and max(map(len, unlike[0])) >= 3 and _one_slip(*unlike[0])


def _one_slip(word: str, other: str) -> bool:
    start = next((i for i, (a, b) in enumerate(zip(word, other, strict=False)) if a != b), min(len(word), len(other)))
    left, right = word[start:], other[start:]
    swapped = left[:2] == right[:2][::-1] and left[2:] == right[2:]
    return swapped or left[1:] == right or left == right[1:] or (len(word) > 4 and left[1:] == right[1:])
