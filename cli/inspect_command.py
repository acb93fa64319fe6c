"""`blockexport inspect`: what a model is made of and what it costs, from its config alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from blockexport.cli import console, options
from blockexport.models.errors import UsageError
from blockexport.models.exit_codes import ExitCode


def inspect(
    model: options.Model,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", "-T", min=1, help="Context length T to count for (default: 8192, or the model's)."),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", "-B", min=1, help="Sequences in the cache.")] = 32,
    fp32: options.Fp32 = False,
    fp16: options.Fp16 = False,
    bf16: options.Bf16 = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Show the block step by step, and count parameters, operations per token and bytes of KV cache.

    Reads the config alone: a preset needs no weights, a folder no more than its config.json. Bytes are counted in the
    model's own type unless one is given.

    Example: blockexport inspect llama-3-8b --tokens 8192 --batch-size 32
    """
    from blockexport.models.checkpoints.sources import shadowed_preset
    from blockexport.models.model_cost import inspect_model

    for line in shadowed_preset(model):
        console.say(f"note: {line}")
    for line in _of_manifest(Path(model)):
        console.say(f"note: {line}")
    precision = options.one_precision("a count", fp32=fp32, fp16=fp16, bf16=bf16)
    description = inspect_model(model, tokens=tokens, batch_size=batch_size, precision=precision)
    if as_json:
        console.print_json({"model": model, **description})
    else:
        from blockexport.cli.inspect_view import show

        show(model, description)
    return ExitCode.GOOD


def _of_manifest(folder: Path) -> Iterator[str]:
    """What the config of a bundle does not tell: that its weights take less than they are counted for, or that nothing
    is known of them."""
    from blockexport.export.bundle.manifest import MANIFEST, ONNX_FILE, read_manifest

    if not os.path.lexists(folder / MANIFEST):
        return
    try:
        manifest = read_manifest(folder)
    except UsageError as error:  # the config is all that is asked for, and a manifest may be that of another program
        yield f"{error}. Counted here is the model of config.json alone"
        return
    if manifest.quantisation is not None:
        held = sum(manifest.files[name].bytes for name in manifest.files[ONNX_FILE].made_from)
        bits = manifest.quantisation.layers.bits
        yield (
            f"{folder} is quantised (int{bits}): its weights and RoPE tables take {held:,} bytes. Counted here is the "
            "model that it was made from"
        )
