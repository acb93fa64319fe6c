"""What a model costs, as one document: parameters, operations per token and bytes of cache."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from blockexport.models.config import arithmetic
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision

DEFAULT_TOKENS = 8192


def describe(config: ModelConfig, tokens: int | None, batch_size: int, precision: Precision) -> dict[str, Any]:
    """Every figure of a model: whole numbers, bytes and operations unrounded.

    Args:
        config: of the model.
        tokens: context length T; 8192, or the model's range, by default.
        batch_size: sequences in the cache.
        precision: of weights and cache.

    Raises:
        UsageError: more tokens than the model has positions.
    """
    tokens = _context(config, tokens)
    counted = arithmetic.count_parameters(config)
    saving = arithmetic.gqa_saving(config)
    bytes_per_token = arithmetic.cache_bytes(config, precision.element.itemsize)
    return {
        "config": config.to_json(),
        "precision": precision.value,
        "tokens": tokens,
        "batch_size": batch_size,
        "block": [asdict(operation) for operation in arithmetic.block_operations(config, tokens)],
        "parameters": {
            **asdict(counted),
            "block": counted.block,
            "mlp_share": counted.mlp_share,
            "blocks": counted.blocks,
            "total": counted.total,
        },
        "weight_bytes": counted.total * precision.element.itemsize,
        "flops_per_token": {
            "weights": arithmetic.weight_flops(config),
            "attention_by_layer": [
                arithmetic.attention_flops(config, tokens, layer) for layer in range(config.num_hidden_layers)
            ],
            "attention": arithmetic.all_attention_flops(config, tokens),
        },
        "cache_bytes": {
            "per_token": bytes_per_token,
            "per_sequence": bytes_per_token * tokens,
            "batch": arithmetic.cache_bytes(config, precision.element.itemsize, tokens, batch_size),
            "without_gqa": saving * arithmetic.cache_bytes(config, precision.element.itemsize, tokens, batch_size),
            "times_without_gqa": saving,
        },
    }


def _context(config: ModelConfig, wanted: int | None) -> int:
    limit = config.max_position_embeddings
    if wanted is None:
        return min(DEFAULT_TOKENS, limit)
    if wanted > limit:
        raise UsageError(f"--tokens {wanted} is past the {limit} positions of this model; give at most {limit}")
    return wanted
