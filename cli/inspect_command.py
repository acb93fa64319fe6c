"""`blockexport inspect`: what a model is made of and what it costs, from its config alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockexport.cli import console

if TYPE_CHECKING:
    from blockexport.models.config.model_config import ModelConfig
    from blockexport.models.precision import Precision

DEFAULT_TOKENS = 8192


def inspect(
    model: Annotated[
        str,
        typer.Argument(help="A folder with config.json, a .gguf file, a preset such as llama-3-8b, or a Hub id."),
    ],
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", "-T", min=1, help="Context length T to count for (default: 8192, or the model's)."),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", "-B", min=1, help="Sequences in the cache.")] = 32,
    fp32: Annotated[bool, typer.Option("--fp32", help="Count bytes in float32.")] = False,
    fp16: Annotated[bool, typer.Option("--fp16", help="Count bytes in float16.")] = False,
    bf16: Annotated[
        bool, typer.Option("--bf16", help="Count bytes in bfloat16 (default: the model's own type).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the block step by step, and count parameters, operations per token and bytes of KV cache.

    Reads the config alone: a preset needs no weights, a folder no more than its config.json.

    Example: blockexport inspect llama-3-8b --tokens 8192 --batch-size 32
    """
    config = read_config(model)
    description = describe(config, _tokens(config, tokens), batch_size, _precision(config, fp32, fp16, bf16))
    if as_json:
        console.print_json({"model": model, **description})
    else:
        from blockexport.cli.inspect_view import show

        show(model, config, description)


def read_config(model: str) -> ModelConfig:
    """The config of what the user calls a model, without its weights. Raises UsageError when there is none."""
    from blockexport.models.checkpoints.hub import fetch_from_hub
    from blockexport.models.checkpoints.sources import hub_id_of, open_checkpoint
    from blockexport.models.config.config_hf import read_hf_config
    from blockexport.models.config.presets import PRESETS
    from blockexport.models.regular_file import is_there

    path = Path(model).expanduser()
    if path.is_dir() and is_there(path / "config.json"):
        return read_hf_config(path)
    if not path.exists():
        if model in PRESETS:
            return PRESETS[model].config
        hub_id = hub_id_of(model)
        if hub_id is not None:
            return read_hf_config(fetch_from_hub(hub_id, ["config.json"])[0])
    return open_checkpoint(model).config


def _tokens(config: ModelConfig, wanted: int | None) -> int:
    from blockexport.models.errors import UsageError

    limit = config.max_position_embeddings
    if wanted is None:
        return min(DEFAULT_TOKENS, limit)
    if wanted > limit:
        raise UsageError(f"--tokens {wanted} is past the {limit} positions of this model; give at most {limit}")
    return wanted


def _precision(config: ModelConfig, fp32: bool, fp16: bool, bf16: bool) -> Precision:
    from blockexport.models.errors import UsageError
    from blockexport.models.precision import Precision

    flags = {Precision.FP32: fp32, Precision.FP16: fp16, Precision.BF16: bf16}
    wanted = [precision for precision, given in flags.items() if given]
    if len(wanted) > 1:
        named = " and ".join(f"--{precision}" for precision in wanted)
        raise UsageError(f"{named} exclude each other; give one of them, or none for the model's own type")
    return wanted[0] if wanted else next((p for p in Precision if p.dtype_name == config.dtype), Precision.FP32)


def describe(config: ModelConfig, tokens: int, batch_size: int, precision: Precision) -> dict[str, Any]:
    """Every figure the command prints, as the JSON document holds it: whole numbers, bytes and operations unrounded."""
    from dataclasses import asdict

    from blockexport.models.config import arithmetic

    counted = arithmetic.count_parameters(config)
    saving = arithmetic.gqa_saving(config)
    bytes_per_token = arithmetic.cache_bytes(config, precision.itemsize)
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
        "weight_bytes": counted.total * precision.itemsize,
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
            "batch": arithmetic.cache_bytes(config, precision.itemsize, tokens, batch_size),
            "without_gqa": saving * arithmetic.cache_bytes(config, precision.itemsize, tokens, batch_size),
            "times_without_gqa": saving,
        },
    }
