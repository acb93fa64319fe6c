"""Metadata of a GGUF file into a ModelConfig, for the architecture of every family.

Source of the keys: `gguf.constants.Keys` of the gguf package and the GGUF specification,
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every `{architecture}.*` key is read, accepted at the one
value that says nothing, or refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from blockexport.models.config.config_fields import (
    MAX_LAYERS,
    HeadKeys,
    RawFields,
    check_heads,
    derived_head_dim,
    shortest_decimal,
)
from blockexport.models.config.model_config import ModelConfig, RopeScaling
from blockexport.models.element_types import ELEMENT_TYPES
from blockexport.models.families.every_family import GGUF_FAMILIES
from blockexport.models.families.family import GgufForm
from blockexport.models.formats.config_rope import mscale
from blockexport.models.strict_json import shown

DEFAULT_ROPE_THETA = 10_000.0
# Every other stored type is read as float32.
FILE_TYPE_DTYPES = {one.gguf_file: one.name for one in ELEMENT_TYPES if one.gguf_file is not None}

HARMLESS_PREFIXES: dict[str, str] = {
    "general.": "name, authors, licence and file type",
    "tokenizer.": "read when the tokenizer is rebuilt",
    "quantize.": "how the quantised values were chosen",
    "imatrix.": "how the quantised values were chosen",
    "mradermacher.": "a publisher's notes on the quantisation",
}

NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "expert_count": ((0,), "mixtures of experts are not implemented"),
    "expert_used_count": ((0,), "mixtures of experts are not implemented"),
    "nextn_predict_layers": ((0,), "layers that predict further tokens are not implemented"),
    "use_parallel_residual": ((False,), "attention and MLP in parallel are not implemented"),
    "pooling_type": ((0,), "it makes the model an encoder of whole texts"),
    "attention.causal": ((True,), "only causal attention can be exported"),
    "attention.max_alibi_bias": ((0.0,), "attention biases by distance are not implemented"),
    "attention.clamp_kqv": ((0.0,), "clamped projections are not implemented"),
    "attn_logit_softcapping": ((0.0,), "capped attention scores are not implemented"),
    "final_logit_softcapping": ((0.0,), "capped logits are not implemented"),
    "logit_scale": ((0.0, 1.0), "scaled logits are not implemented"),
    "residual_scale": ((0.0, 1.0), "a scaled residual is not implemented"),
    "embedding_scale": ((0.0, 1.0), "scaled embeddings are not implemented"),
    "tensor_data_layout": (("Meta AI original pth",), "the rows of q and k would be in another order"),
    "rope.scaling.attn_factor": ((1.0,), "it belongs to YaRN scaling, which is not implemented for GGUF files"),
}
"""Keys below the architecture that say nothing at these values and change the mathematics at any other."""


def config_from_gguf(
    fields: Mapping[str, Any],
    freq_factors: tuple[float, ...] | None,
    tensor_names: Collection[str],
    where: str,
) -> ModelConfig:
    """Read decoded GGUF metadata.

    Args:
        fields: key to plain Python value.
        freq_factors: the values of `rope_freqs.weight`, H/2 of them, when the file has that tensor.
        tensor_names: the file's own tensor names; biases and an untied head are seen from them.
        where: the file's name, for messages.

    Raises:
        UsageError: a key is missing, of the wrong type or range, unknown, in conflict with another, or asks for
            something that is not implemented.
    """
    raw = RawFields(fields, where)
    arch = raw.text("general.architecture")
    if arch not in GGUF_FAMILIES:
        raise raw.error(f"architecture {arch!r} is not implemented; supported are {', '.join(GGUF_FAMILIES)}")
    family, form = GGUF_FAMILIES[arch]
    layers = raw.integer(f"{arch}.block_count", maximum=MAX_LAYERS)
    hidden_size = raw.integer(f"{arch}.embedding_length")
    heads = _same_in_all_layers(raw, f"{arch}.attention.head_count")
    key_value_heads = _same_in_all_layers(raw, f"{arch}.attention.head_count_kv", heads)
    head_dim = _head_dim(raw, arch, hidden_size, heads)
    rotary_dim = _rotary_dim(raw, form, head_dim)
    check_heads(raw, _head_keys(arch), heads, key_value_heads, head_dim)
    config = ModelConfig(
        model_type=family.model_type,
        vocab_size=_vocab_size(raw, arch),
        hidden_size=hidden_size,
        intermediate_size=_same_in_all_layers(raw, f"{arch}.feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        max_position_embeddings=raw.integer(f"{arch}.context_length"),
        rms_norm_eps=shortest_decimal(raw.number(f"{arch}.attention.{form.eps_key}")),
        rope_theta=shortest_decimal(raw.number(f"{arch}.rope.freq_base", DEFAULT_ROPE_THETA)),
        rope_scaling=_rope_scaling(raw, form, freq_factors, head_dim),
        rotary_dim=rotary_dim,
        qkv_bias=_any_bias(tensor_names, "attn_q", "attn_k", "attn_v", "attn_qkv"),
        o_bias=form.more_biases and _any_bias(tensor_names, "attn_output"),
        mlp_bias=form.more_biases and _any_bias(tensor_names, "ffn_gate", "ffn_up", "ffn_down"),
        qk_norm=family.qk_norm,
        learned_positions=family.learned_positions,
        tie_word_embeddings="output.weight" not in tensor_names,
        dtype=FILE_TYPE_DTYPES.get(raw.integer("general.file_type", 0, minimum=0), "float32"),
        bos_token_id=raw.optional_integer("tokenizer.ggml.bos_token_id", minimum=0),
        eos_token_ids=_end_tokens(raw),
    )
    options = dict(form.options(raw, layers))
    if form.parallel_by_norms:
        raw.get(f"{arch}.use_parallel_residual")  # llama.cpp goes by the tensors, whatever it says
        options["residual"] = "serial" if "blk.0.ffn_norm.weight" in tensor_names else "parallel_one_norm"
    config = family.completed(replace(config, **options))
    _refuse_a_window(raw, arch)
    _refuse_the_rest(raw, arch, head_dim)
    return config


def _same_in_all_layers(raw: RawFields, key: str, default: int | None = None) -> int:
    """A number that GGUF lets differ between layers, as long as it does not."""
    value = raw.get(key)
    if not isinstance(value, list | tuple):
        return raw.integer(key, default)
    distinct = sorted(set(value))
    if len(distinct) != 1:
        raise raw.error(f"{key} differs between layers ({shown(value)}); only layers of one shape can be exported")
    return RawFields({key: distinct[0]}, raw.where).integer(key)


def _head_keys(arch: str) -> HeadKeys:
    attention = f"{arch}.attention"
    return HeadKeys(
        f"{attention}.head_count", f"{attention}.head_count_kv", f"{attention}.key_length", f"{arch}.embedding_length"
    )


def _head_dim(raw: RawFields, arch: str, hidden_size: int, heads: int) -> int:
    """H. Keys and values must have the same width."""
    key_length, value_length = f"{arch}.attention.key_length", f"{arch}.attention.value_length"
    stated = {key: raw.integer(key) for key in (key_length, value_length) if raw.has(key)}
    head_dim = next(iter(stated.values())) if stated else derived_head_dim(raw, _head_keys(arch), hidden_size, heads)
    if len(set(stated.values())) > 1:
        raise raw.error(
            f"{key_length} is {stated[key_length]} and {value_length} is {stated[value_length]}; "
            "only keys and values of one width can be exported"
        )
    # One of the two alone leaves the other at D / N.
    if len(stated) == 1 and head_dim * heads != hidden_size:
        key = next(iter(stated))
        raise raw.error(f"{key} is {head_dim}, and the other width is left at {hidden_size} / {heads}; state both")
    return head_dim


def _rotary_dim(raw: RawFields, form: GgufForm, head_dim: int) -> int | None:
    """How many of a head's dimensions are turned; None where all are."""
    key = f"{form.architecture}.rope.dimension_count"
    turned = raw.integer(key, head_dim, maximum=head_dim)
    if turned == head_dim:
        return None
    if not form.partial_rotary:
        raise raw.error(
            f"{key} is {turned} and the head has {head_dim} dimensions; "
            "rotating only part of a head is not implemented in this architecture"
        )
    if turned % 2:
        raise raw.error(f"{key} is {turned}; RoPE turns pairs of dimensions, so it must be even")
    return turned


def _vocab_size(raw: RawFields, arch: str) -> int:
    key, count = f"{arch}.vocab_size", len(raw.items("tokenizer.ggml.tokens", str, []))
    stated = raw.integer(key, count) if count else raw.integer(key)
    if count and stated != count:
        raise raw.error(f"{key} is {stated} and tokenizer.ggml.tokens has {count} tokens; they must match")
    return stated


def _rope_scaling(
    raw: RawFields, form: GgufForm, freq_factors: tuple[float, ...] | None, head_dim: int
) -> RopeScaling | None:
    """Linear scaling from the metadata, or the factors of `rope_freqs.weight` (how llama3 scaling is stored)."""
    arch = form.architecture
    prefix = f"{arch}.rope.scaling"
    kind = raw.text(f"{prefix}.type", "none")
    if kind == "yarn" and form.yarn:
        return _yarn(raw, prefix)
    if kind not in ("none", "linear"):
        raise raw.error(
            f"{prefix}.type {kind!r} is not implemented for GGUF files of {arch}; supported are none, linear"
        )
    # Older files have the factor alone, under another name.
    old = f"{arch}.rope.scale_linear"
    if raw.has(old) and not raw.has(f"{prefix}.type") and raw.number(old) != 1.0:
        kind = "linear"
    raw.get(f"{prefix}.original_context_length")  # neither `linear` nor the factors depend on it
    raw.get(f"{prefix}.finetuned")  # a note on the training
    factor = shortest_decimal(raw.number(f"{prefix}.factor", raw.number(old, 1.0)))
    if raw.has(old) and shortest_decimal(raw.number(old)) != factor:
        raise raw.error(f"{prefix}.factor is {factor} and {old} is {raw.number(old)}; keep the one that is right")
    if kind == "none" and factor != 1.0:
        stated = raw.told(f"{prefix}.factor" if raw.has(f"{prefix}.factor") else old, factor)
        raise raw.error(
            f"{stated} and {raw.told(f'{prefix}.type', kind)}; set the type to linear, or remove the factor"
        )
    if freq_factors is None:
        return RopeScaling("linear", factor=factor) if kind == "linear" else None
    if not form.rope_factors:
        reading = ", ".join(name for name, (_, other) in GGUF_FAMILIES.items() if other.rope_factors)
        raise raw.error(
            f"there is a rope_freqs.weight, which llama.cpp reads in the architecture {reading} and refuses in {arch}: "
            "convert the model anew"
        )
    if kind == "linear" and factor != 1.0:
        raise raw.error(f"{prefix}.type is 'linear' and there is a rope_freqs.weight; both at once are not implemented")
    if len(freq_factors) != head_dim // 2:
        raise raw.error(f"rope_freqs.weight has {len(freq_factors)} values; a head of {head_dim} needs {head_dim // 2}")
    if not all(math.isfinite(f) and f > 0 for f in freq_factors):
        raise raw.error(f"rope_freqs.weight is {shown(freq_factors)}; every factor must be finite and above zero")
    return RopeScaling("freq_factors", freq_factors=freq_factors)


def _yarn(raw: RawFields, prefix: str) -> RopeScaling:
    """As llama.cpp computes it: the ramp ends at whole pairs, and the factor of cosines and sines is the paper's over
    that of `yarn_log_multiplier`."""
    factor, log_multiplier = shortest_decimal(raw.number(f"{prefix}.factor")), f"{prefix}.yarn_log_multiplier"
    for key in ("yarn_ext_factor", "yarn_attn_factor"):
        raw.only(f"{prefix}.{key}", (1.0,), "it would be one YaRN of its own")
    raw.get(f"{prefix}.finetuned")  # a note on the training
    return RopeScaling(
        "yarn",
        factor=factor,
        original_max_position_embeddings=raw.integer(f"{prefix}.original_context_length"),
        beta_fast=shortest_decimal(raw.number(f"{prefix}.yarn_beta_fast", 32.0)),
        beta_slow=shortest_decimal(raw.number(f"{prefix}.yarn_beta_slow", 1.0)),
        attention_factor=mscale(factor, 1.0) / mscale(factor, raw.decimal(log_multiplier, 0.0)),
    )


def _refuse_a_window(raw: RawFields, arch: str) -> None:
    """llama.cpp reads no window in most architectures: whatever the file says, every layer sees the whole prefix.

    What the writer of such a file meant and what its readers compute are two things, unless the window is as long as
    the context.
    """
    key, pattern_key = f"{arch}.attention.sliding_window", f"{arch}.attention.sliding_window_pattern"
    if key in raw.used:
        return
    window = raw.integer(key, 0, minimum=0)
    pattern = raw.get(pattern_key)
    none_has_it = isinstance(pattern, list | tuple) and not any(pattern)
    if 0 < window < raw.integer(f"{arch}.context_length") and not none_has_it:
        raise raw.error(
            f"{key} is {window}, which llama.cpp ignores in the architecture {arch}: it lets every layer see the whole "
            "prefix. Export the Hugging Face checkpoint, whose config.json says which layers have a window; or remove "
            "the key from a copy of the file, if the model has none"
        )


def _any_bias(tensor_names: Collection[str], *parts: str) -> bool:
    """Whether any layer has one of these biases. If only some do, the check of the tensors names the missing ones."""
    endings = tuple(f".{part}.bias" for part in parts)
    return any(name.endswith(endings) for name in tensor_names)


def _end_tokens(raw: RawFields) -> tuple[int, ...]:
    """End of sequence, of turn and of message: a chat ends at any of them."""
    keys = [f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom")]
    ids = [raw.optional_integer(key, minimum=0) for key in keys]
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def _refuse_the_rest(raw: RawFields, arch: str, head_dim: int) -> None:
    for key, (allowed, why) in NEUTRAL.items():
        if f"{arch}.{key}" not in raw.used:
            raw.only(f"{arch}.{key}", allowed, why)
    scale = f"{arch}.attention.scale"
    if raw.has(scale) and scale not in raw.used and not math.isclose(raw.number(scale), head_dim**-0.5, rel_tol=1e-6):
        raise raw.error(f"{scale} is {raw.number(scale)}; only 1 / sqrt({head_dim}) can be exported")
    if raw.integer("split.count", 0, minimum=0) > 1:
        raise raw.error(f"this is one of {raw.get('split.count')} parts; merge them first (llama-gguf-split --merge)")
    unknown = [k for k in raw.unused() if not k.startswith((*HARMLESS_PREFIXES, "split."))]
    if unknown:
        raise raw.unknown(" metadata", unknown)
