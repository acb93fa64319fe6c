"""Which tensors a config calls for, and the check that a checkpoint holds exactly those.

Names and layout are Hugging Face's: a linear layer's weight is [out, in]. Nothing is silently ignored: a tensor is
needed, is on the short list of harmless ones below, or is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from blockexport.models.checkpoints.checkpoint import TensorEntry
from blockexport.models.checkpoints.size_keys import SizeKeys
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.element_types import ELEMENT_TYPES
from blockexport.models.errors import UsageError
from blockexport.models.interface import Ends
from blockexport.models.wording import listed

EMBEDDING = "model.embed_tokens.weight"
POSITIONS = "model.embed_positions.weight"
OUTPUT_HEAD = "lm_head.weight"
OUTPUT_BIAS = "lm_head.bias"
FINAL_NORM = "model.norm.weight"

_OF_LAYER = re.compile(r"model\.layers\.(\d+)\.")

FLOAT_TYPES = tuple(one.safetensors for one in ELEMENT_TYPES if one.is_float)

HARMLESS = {
    re.compile(r"(model\.layers\.\d+\.self_attn|model)\.rotary_emb\.inv_freq"): (
        "a copy of the rotation frequencies, which follow from the config (Llama-2 checkpoints carry it)"
    ),
    re.compile(r"model\.layers\.\d+\.(self_)?attn\.(masked_)?bias"): (
        "the causal mask and what stands in masked places, which transformers' GPT-2 and GPT-NeoX once saved"
    ),
}
"""Tensors that may be present and change nothing, with the reason. A tied head is compared with the embedding."""

OTHER_PARTS = re.compile(r"(^|\.)(vision_tower|vision_model|visual|multi_modal_projector|mm_projector|audio_tower)\.")
"""What tensors of a multimodal model are called that are none of its text part."""

OTHER_LAYOUTS = {
    re.compile(r"(^|\.)lora_|\.base_layer\.|\.modules_to_save\."): (
        "these are parts of a LoRA adapter. Give its base model, and the adapter's folder with --lora"
    ),
    re.compile(
        r"\.(qweight|qzeros|g_idx|weight_(packed|scale|shape|scale_inv)|scales|biases|absmax|quant_map)$|\.absmax\."
    ): (
        "these belong to quantised weights. Packed ones are read where quantization_config in config.json says how "
        "they are packed; otherwise take the unquantised checkpoint of this model, or a GGUF file of it"
    ),
    re.compile(r"(^|\.)(attention\.wq|feed_forward\.w1|tok_embeddings)\."): (
        "these are the names of Meta's and Mistral's own files, whose query and key rows have another order. Download "
        "the Hugging Face files of this model, or convert it with transformers' conversion script"
    ),
    re.compile(r"(^|\.)blk\.\d+\."): (
        "these are the names of a GGUF file, whose query and key rows may have another order. Take the .gguf file"
    ),
    re.compile(r"\.experts\.|\.mlp\.gate\.weight$|\.block_sparse_moe\."): (
        "these belong to a mixture of experts, which is not implemented"
    ),
    re.compile(r"(qkv_proj|query_key_value|gate_up_proj|c_attn|Wqkv|attn_qkv)\."): (
        "these are fused projections. Download the Hugging Face files of this model, which have them apart"
    ),
    OTHER_PARTS: ("these are the other parts of a multimodal model, which are not implemented"),
    re.compile(r"(^|\.)(score|classifier|v_head|value_head|regression_head)\."): (
        "these are the head of a classifier or reward model, which is not implemented"
    ),
}
"""What names of other layouts tell, by what they contain, and what to do about them."""


def expected_tensors(config: ModelConfig, ends: Ends = Ends.LOGITS) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor the model uses, in the order of the forward pass.

    Args:
        config: the model.
        ends: a headless decoder lacks the embedding and the output head, a stage what is in others.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    vocabulary = (config.vocab_size, config.hidden_size)
    if ends.from_ids:
        shapes[EMBEDDING] = vocabulary
    if config.learned_positions and (ends.from_ids or ends.headless):
        shapes[POSITIONS] = (config.max_position_embeddings, config.hidden_size)
    for layer in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer_tensors(config).items()}
    if ends.normed:
        shapes |= _norm_tensors(config, "model.norm", config.hidden_size)
    if ends.to_logits and not config.tie_word_embeddings:
        shapes[OUTPUT_HEAD] = vocabulary
    if ends.to_logits and config.head_bias:
        shapes[OUTPUT_BIAS] = (config.vocab_size,)
    return shapes


def _layer_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, intermediate, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, key_value = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    projections = {
        "self_attn.q_proj": (query, hidden, config.qkv_bias),
        "self_attn.k_proj": (key_value, hidden, config.qkv_bias),
        "self_attn.v_proj": (key_value, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, query, config.o_bias),
        **({"mlp.gate_proj": (intermediate, hidden, config.mlp_bias)} if config.gated_mlp else {}),
        "mlp.up_proj": (intermediate, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, intermediate, config.mlp_bias),
    }
    norms = {name: _norm_tensors(config, name, size) for name, size in layer_norms(config).items()}
    shapes = dict(norms.pop(config.layer_norms.get("attention_in", ""), {}))
    for name, (rows, columns, bias) in projections.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    for norm in norms.values():
        shapes |= norm
    return shapes


def layer_norms(config: ModelConfig) -> dict[str, int]:
    """The norms of a layer and their sizes, by name."""
    sizes = {name: config.hidden_size for place, name in config.layer_norms.items() if place == "attention_in"}
    if config.qk_norm:
        sizes |= zip(("self_attn.q_norm", "self_attn.k_norm"), config.qk_norm_sizes, strict=True)
    return sizes | dict.fromkeys(config.layer_norms.values(), config.hidden_size)


def norm_places(config: ModelConfig) -> list[str]:
    """Every norm of the model by name, the last one last."""
    layers = range(config.num_hidden_layers)
    return [*(f"model.layers.{layer}.{name}" for layer in layers for name in layer_norms(config)), "model.norm"]


def _norm_tensors(config: ModelConfig, name: str, size: int) -> dict[str, tuple[int, ...]]:
    there = {"weight": config.norm_weight, "bias": config.norm_bias}
    return {f"{name}.{part}": (size,) for part, is_there in there.items() if is_there}


def needed_entries(
    found: Mapping[str, TensorEntry],
    config: ModelConfig,
    where: str,
    described_by: str = "config.json",
    keys: SizeKeys | None = None,
) -> dict[str, TensorEntry]:
    """The entries the model uses, in the order of `expected_tensors`, after checking all of `found`.

    A `lm_head.weight` beside tied embeddings passes here: the reader must compare it with the embedding.

    Args:
        found: what the checkpoint holds, by Hugging Face name.
        config: what it should hold.
        where: the checkpoint, for messages.
        described_by: what the config was read from, for messages.
        keys: that the config was read from, for messages; None: they are called otherwise.

    Raises:
        UsageError: a tensor is missing, unknown, or of the wrong shape or type.
    """
    if not found:
        raise UsageError(f"{where} holds no tensors: download the weights again")
    expected = expected_tensors(config)
    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected and not _may_be_extra(name, config)]
    if missing or unknown:
        stored = [found[name].stored_name or name for name in unknown]
        copies = _copies(stored, missing, expected)
        depth = _other_depth(missing, unknown, config)
        if depth and keys is not None:
            described_by = f"{keys.told('num_hidden_layers')} in {described_by}"
        raise UsageError(_mismatch(missing, stored, copies, where, described_by, expected, depth))
    for name, shape in expected.items():
        _check_entry(found[name], shape, where, keys)
    return {name: found[name] for name in expected}


def _may_be_extra(name: str, config: ModelConfig) -> bool:
    return any(pattern.fullmatch(name) for pattern in HARMLESS) or (name == OUTPUT_HEAD and config.tie_word_embeddings)


def _other_depth(missing: list[str], unknown: list[str], config: ModelConfig) -> str:
    """What is said of a checkpoint that has more layers than its config says, or fewer; empty where it is something
    else."""
    layers = [int(found[1]) if (found := _OF_LAYER.match(name)) else -1 for name in missing or unknown]
    if missing and not unknown and config.num_hidden_layers - 1 in layers and 0 not in layers:
        return "It has fewer layers than its config: it is not whole, or its config is another model's"
    if unknown and not missing and min(layers) >= config.num_hidden_layers:
        return "It has more layers than its config, and leaving them out would change the model"
    return ""


def _check_entry(entry: TensorEntry, shape: tuple[int, ...], where: str, keys: SizeKeys | None) -> None:
    name = entry.stored_name or entry.name
    if entry.shape != shape:
        by = f", by {said}" if keys is not None and (said := keys.of(entry.name, entry.shape, shape)) else ""
        raise UsageError(
            f"{name} in {where} has shape {list(entry.shape)}; its config calls for {list(shape)}{by}. "
            "Config and weights belong to different models, or one of them was edited"
        )
    if entry.dtype not in FLOAT_TYPES:
        raise UsageError(
            f"{name} in {where} has type {entry.dtype}; weights must be {', '.join(FLOAT_TYPES)}. "
            "Take the unquantised checkpoint of this model, or convert the tensor first"
        )


def _mismatch(
    missing: list[str],
    unknown: list[str],
    copies: str | None,
    where: str,
    described_by: str,
    expected: Iterable[str],
    depth: str,
) -> str:
    """Names on both sides, and what they look like."""
    lacks = f"lacks {_listed(missing)}, which its config calls for" if missing else ""
    holds = f"holds {_listed(unknown)}, which it does not use" if unknown else ""
    said = f"{where} {' and '.join(part for part in (lacks, holds) if part)}"
    if depth:
        return f"{said}. {depth}. Check {described_by} against the weights"
    layout = next((what for pattern, what in OTHER_LAYOUTS.items() if any(map(pattern.search, unknown))), None)
    if layout is not None:
        return f"{said}: {layout}"
    if copies is not None:
        return f"{said}. They are more than one set of the model's tensors, under {copies}: keep the one that is meant"
    if (prefix := _unknown_prefix(missing, unknown)) is not None:
        return (
            f"{said}. They are the same with {prefix!r} in front, which may mean that they are not the model's own "
            "weights: if they are, save them again without it"
        )
    if missing == [OUTPUT_HEAD]:
        return (
            f"{said}. If the output head shares the embedding, config.json should say tie_word_embeddings: true; if it "
            "does not, the model was saved without its head (AutoModel instead of AutoModelForCausalLM): its hidden "
            "states (--headless) and embeddings (--task embed) are exported without one"
        )
    if missing == [EMBEDDING]:
        return f"{said}. If the embedding is the table {OUTPUT_HEAD}, config.json should say tie_word_embeddings: true"
    if unknown and not missing:
        doubles = [_double(name, expected) for name in unknown]
        if all(doubles):
            return (
                f"{said}. {unknown[0]} is named like {doubles[0]} with other words in front, which is there too: keep "
                "the one that is meant, and remove the other"
            )
        return (
            f"{said}: leaving weights out would change the model, so the checkpoint is refused. Check {described_by} "
            "(biases, QK-norm, number of layers) against the weights"
        )
    return f"{said}. Download the checkpoint again, or correct {described_by}"


def _copies(unknown: list[str], missing: list[str], expected: Iterable[str]) -> str | None:
    """The words before `layers.` where several whole sets of layers are stored; `model.` where that one is used."""
    wanted = {name.partition("layers.")[2] for name in expected} - {""}
    stored: dict[str, set[str]] = {}
    for name in unknown:
        front, _, tail = name.partition("layers.")
        stored.setdefault(front, set()).add(tail)
    fronts = {front for front, tails in stored.items() if wanted <= tails}
    if not missing:
        fronts.add("model.")
    return " and ".join(map(repr, sorted(fronts))) if len(fronts) > 1 else None


def _double(name: str, expected: Iterable[str]) -> str | None:
    """The tensor of the model whose name `name` has, with other words in front."""
    _, in_layer, tail = name.partition("layers.")
    alike = (own for own in expected if (own.partition("layers.")[2] == tail if in_layer else name.endswith(f".{own}")))
    return next(alike, None)


def _unknown_prefix(missing: list[str], unknown: list[str]) -> str | None:
    """What stands in front of every missing name among the unknown ones, if that is all there is to it."""
    ending = next((name for name in unknown if missing and name.endswith(f".{missing[0]}")), None)
    if ending is None:
        return None
    prefix = ending.removesuffix(missing[0])
    return prefix if {prefix + name for name in missing} <= set(unknown) else None


def _listed(names: list[str]) -> str:
    return f"{'tensor' if len(names) == 1 else f'{len(names)} tensors'} {listed(names, 4)}"
