"""Which tensors a config calls for, and the check that a checkpoint holds exactly those.

Names and layout are Hugging Face's: a linear layer's weight is [out, in]. Nothing is silently ignored: a tensor is
needed, is on the short list of harmless ones below, or is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from blockexport.models.checkpoints.checkpoint import TensorEntry
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError

EMBEDDING = "model.embed_tokens.weight"
OUTPUT_HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"

FLOAT_TYPES = ("F32", "F16", "BF16")

HARMLESS = {
    re.compile(r"(model\.layers\.\d+\.self_attn|model)\.rotary_emb\.inv_freq"): (
        "a copy of the rotation frequencies, which follow from the config (Llama-2 checkpoints carry it)"
    ),
}
"""Tensors that may be present and change nothing, with the reason. A tied head is compared with the embedding."""


def expected_tensors(config: ModelConfig, *, headless: bool = False) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor the model uses, in the order of the forward pass.

    Args:
        config: the model.
        headless: leave out the embedding and the output head.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    vocabulary = (config.vocab_size, config.hidden_size)
    if not headless:
        shapes[EMBEDDING] = vocabulary
    for layer in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer_tensors(config).items()}
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not headless and not config.tie_word_embeddings:
        shapes[OUTPUT_HEAD] = vocabulary
    return shapes


def _layer_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, intermediate, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, key_value = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    projections = {
        "self_attn.q_proj": (query, hidden, config.qkv_bias),
        "self_attn.k_proj": (key_value, hidden, config.qkv_bias),
        "self_attn.v_proj": (key_value, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, query, config.o_bias),
        "mlp.gate_proj": (intermediate, hidden, config.mlp_bias),
        "mlp.up_proj": (intermediate, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, intermediate, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    for name, (rows, columns, bias) in projections.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (head_dim,), "self_attn.k_norm.weight": (head_dim,)}
    shapes["post_attention_layernorm.weight"] = (hidden,)
    return shapes


def is_harmless(name: str) -> bool:
    """True when a tensor of this name may be left unread."""
    return any(pattern.fullmatch(name) for pattern in HARMLESS)


def needed_entries(found: Mapping[str, TensorEntry], config: ModelConfig, where: str) -> dict[str, TensorEntry]:
    """The entries the model uses, in the order of `expected_tensors`, after checking all of `found`.

    A `lm_head.weight` beside tied embeddings passes here: the reader must compare it with the embedding.

    Args:
        found: what the checkpoint holds, by Hugging Face name.
        config: what it should hold.
        where: the checkpoint, for messages.

    Raises:
        UsageError: a tensor is missing, unknown, or of the wrong shape or type.
    """
    expected = expected_tensors(config)
    missing = [name for name in expected if name not in found]
    if missing:
        raise UsageError(f"{where} lacks {_listed(missing)}, which its config calls for{_missing_hint(missing)}")
    unknown = [name for name in found if name not in expected and not _may_be_extra(name, config)]
    if unknown:
        raise UsageError(
            f"{where} holds {_listed(unknown)}, which a {config.model_type} model of this config does not use: "
            "leaving weights out would change the model, so the checkpoint is refused. "
            "Check config.json (biases, QK-norm, num_hidden_layers) against the weights"
        )
    for name, shape in expected.items():
        _check_entry(found[name], shape, where)
    return {name: found[name] for name in expected}


def _may_be_extra(name: str, config: ModelConfig) -> bool:
    return is_harmless(name) or (name == OUTPUT_HEAD and config.tie_word_embeddings)


def _check_entry(entry: TensorEntry, shape: tuple[int, ...], where: str) -> None:
    if entry.shape != shape:
        raise UsageError(
            f"{entry.name} in {where} has shape {list(entry.shape)}; its config calls for {list(shape)}. "
            "Config and weights belong to different models, or one of them was edited"
        )
    if entry.dtype not in FLOAT_TYPES:
        raise UsageError(
            f"{entry.name} in {where} has type {entry.dtype}; weights must be {', '.join(FLOAT_TYPES)}. "
            "Take the unquantised checkpoint of this model, or convert the tensor first"
        )


def _missing_hint(missing: list[str]) -> str:
    if missing == [OUTPUT_HEAD]:
        return ". If the output head shares the embedding, config.json should say tie_word_embeddings: true"
    return ". Download the checkpoint again, or correct config.json"


def _listed(names: list[str], limit: int = 4) -> str:
    rest = len(names) - limit
    shown = ", ".join(names[:limit])
    plural = "tensor" if len(names) == 1 else f"{len(names)} tensors"
    return f"{plural} {shown}" + (f" and {rest} more" if rest > 0 else "")
