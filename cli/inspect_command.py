"""`blockexport inspect`: what a model is made of and what it costs, from its config alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from blockexport.cli import console, options
from blockexport.cli.completion import models
from blockexport.models.devices import DEVICES
from blockexport.models.errors import UsageError
from blockexport.models.exit_codes import ExitCode

DRAWN = "<!-- a drawing of blockexport inspect -->\n"


def inspect(
    model: options.Model,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", "-T", min=1, help="Context length T to count for (default: 8192, or the model's)."),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", "-B", min=1, help="Sequences in the cache.")] = 32,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME|GB/s,TFLOP/s,GB",
            help=f"What a device does at most: {', '.join(DEVICES)}, or its numbers, as 300,121,24.",
            autocompletion=lambda incomplete: list(DEVICES),
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="The largest batches and contexts that fit into this, as 24GB or 22.5GiB. Default: the device's.",
        ),
    ] = None,
    growth: Annotated[
        bool, typer.Option("--growth", help="How attention's part of a step grows with the context.")
    ] = False,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare", metavar="MODEL", help="Show the figures beside another model's.", autocompletion=models
        ),
    ] = None,
    drawing: Annotated[
        Path | None,
        typer.Option("--drawing", metavar="FILE.svg", dir_okay=False, help="Draw the block with its shapes into FILE."),
    ] = None,
    fp32: options.Fp32 = False,
    fp16: options.Fp16 = False,
    bf16: options.Bf16 = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Show the block step by step, and count parameters, operations per token and bytes of KV cache.

    Reads the config alone: a preset needs no weights, a folder no more than its config.json. Bytes are counted in the
    model's own type unless one is given. What a device does at most is the roofline: the time to read the weights and
    the keys and values, or to compute, whichever is longer.

    Example: blockexport inspect llama-3-8b --tokens 8192 --batch-size 32

    Example: blockexport inspect llama-3-8b --device l4 --compare qwen3-0.6b
    """
    from blockexport.models.checkpoints.sources import shadowed_preset
    from blockexport.models.model_cost import inspect_model

    for line in shadowed_preset(model):
        console.say(f"note: {line}")
    for line in _of_manifest(Path(model)):
        console.say(f"note: {line}")
    precision = options.one_precision("a count", fp32=fp32, fp16=fp16, bf16=bf16)
    asked: dict[str, Any] = {"batch_size": batch_size, "precision": precision, "device": device, "memory": memory}
    described = {model: inspect_model(model, tokens=tokens, **asked)}
    if compare is not None:
        described = compared(described, compare, tokens, asked)
    if drawing is not None:
        _draw(drawing, model, described[model])
    if as_json:
        documents = [{"model": name, **description} for name, description in described.items()]
        console.print_json(documents[0] if compare is None else {"models": documents})
    elif compare is not None:
        from blockexport.cli.inspect_tables import show_compared

        show_compared(described)
    else:
        from blockexport.cli.inspect_tables import show_limits
        from blockexport.cli.inspect_view import show

        show(model, described[model])
        show_limits(described[model], growth=growth)
    return ExitCode.GOOD


def compared(
    described: dict[str, dict[str, Any]], other: str, tokens: int | None, asked: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Both models, counted for the same context: what was asked for, or the longest that both have by default."""
    from blockexport.models.model_cost import inspect_model

    (model, first), second = *described.items(), inspect_model(other, tokens=tokens, **asked)
    if other == model:
        raise UsageError(f"--compare {other} is the model itself: name another one")
    same = min(first["tokens"], second["tokens"])
    return {model: inspect_model(model, tokens=same, **asked), other: inspect_model(other, tokens=same, **asked)}


def _draw(path: Path, model: str, description: dict[str, Any]) -> None:
    from blockexport.cli.inspect_view import options_in_words
    from blockexport.cli.marked_file import marked_place, write_marked
    from blockexport.models.block_drawing import draw_block
    from blockexport.models.config.model_config import ModelConfig
    from blockexport.models.strict_json import read_record

    if path.suffix.lower() != ".svg":
        raise UsageError(f"--drawing {path} is to be SVG: give a name that ends in .svg")
    place = marked_place(path, "drawing", DRAWN)
    config = read_record(ModelConfig, description["config"], "config")
    write_marked(place, draw_block(config, model, options_in_words(config), description["tokens"]), DRAWN)
    console.say(f"drew {path}")


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
