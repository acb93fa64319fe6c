"""What a model costs, as one document: parameters, operations per token and bytes of cache."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from blockexport.models.checkpoints.sources import open_config
from blockexport.models.config import arithmetic
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.devices import read_device, read_memory
from blockexport.models.errors import UsageError
from blockexport.models.model_limits import fits, growth, limits
from blockexport.models.precision import Precision
from blockexport.models.typed_call import typed_call
from blockexport.models.whole_number import whole

DEFAULT_TOKENS = 8192


@typed_call
def inspect_model(
    model: str | Path,
    *,
    tokens: int | None = None,
    batch_size: int = 32,
    precision: Precision | str | None = None,
    device: str | None = None,
    memory: str | None = None,
) -> dict[str, Any]:
    """Parameters, operations per token and bytes of KV cache, from the config alone.

    Args:
        model: a folder with config.json, a GGUF file, a preset, or a Hugging Face id.
        tokens: context length T to count for; 8192, or the model's range, by default.
        batch_size: sequences in the cache.
        precision: of weights and cache; the model's own type by default.
        device: one of `models.devices.DEVICES`, or its `GB/s,TFLOP/s,GB`: what it does at most.
        memory: `24GB` or `22.5GiB`, what has to hold weights and cache; the device's by default.

    Returns:
        What `blockexport inspect --json` prints: whole numbers, bytes and operations unrounded.

    Raises:
        UsageError: a config that cannot be read, more tokens than the model has positions, no such device or size.
    """
    config = open_config(str(model))
    own = next((p for p in Precision if p.element.name == config.dtype), Precision.FP32)
    typed = own if precision is None else Precision.named(precision)
    tokens = _context(config, whole("tokens", tokens, least=1))
    batch_size = whole("batch_size", batch_size, least=1)
    itemsize = typed.element.itemsize
    on = None if device is None else read_device(device)
    room = read_memory(memory) if memory is not None else None if on is None else on.memory
    counted = arithmetic.count_parameters(config)
    saving = arithmetic.gqa_saving(config)
    bytes_per_token = arithmetic.cache_bytes(config, itemsize)
    in_batch = bytes_per_token * tokens * batch_size
    return {
        "config": config.to_json(),
        "precision": typed.value,
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
        "weight_bytes": counted.total * itemsize,
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
            "batch": in_batch,
            "without_gqa": saving * in_batch,
            "times_without_gqa": saving,
        },
        "growth": list(growth(config, itemsize, tokens)),
        **({} if on is None else {"device": limits(config, itemsize, on.speed(typed), batch_size, tokens)}),
        **({} if room is None else {"fits": fits(config, itemsize, room, tokens)}),
    }


def _context(config: ModelConfig, wanted: int | None) -> int:
    limit = config.max_position_embeddings
    if wanted is None:
        return min(DEFAULT_TOKENS, limit)
    if wanted > limit:
        raise UsageError(f"--tokens {wanted} is past the {limit} positions of this model; give at most {limit}")
    return wanted
