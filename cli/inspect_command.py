"""`blockexport inspect`: what a model is made of and what it costs, from its config alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from blockexport.cli import console
from blockexport.models.exit_codes import ExitCode

if TYPE_CHECKING:
    from blockexport.models.precision import Precision


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder with config.json, a .gguf file, a preset such as llama-3-8b, or a Hub id.",
        ),
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
) -> ExitCode:
    """Show the block step by step, and count parameters, operations per token and bytes of KV cache.

    Reads the config alone: a preset needs no weights, a folder no more than its config.json.

    Example: blockexport inspect llama-3-8b --tokens 8192 --batch-size 32
    """
    from blockexport.library import inspect_model

    description = inspect_model(model, tokens=tokens, batch_size=batch_size, precision=_precision(fp32, fp16, bf16))
    if as_json:
        console.print_json({"model": model, **description})
    else:
        from blockexport.cli.inspect_view import show

        show(model, description)
    return ExitCode.GOOD


def _precision(fp32: bool, fp16: bool, bf16: bool) -> Precision | None:
    from blockexport.models.errors import UsageError
    from blockexport.models.precision import Precision

    flags = {Precision.FP32: fp32, Precision.FP16: fp16, Precision.BF16: bf16}
    wanted = [precision for precision, given in flags.items() if given]
    if len(wanted) > 1:
        named = " and ".join(f"--{precision}" for precision in wanted)
        raise UsageError(f"{named} exclude each other; give one of them, or none for the model's own type")
    return wanted[0] if wanted else None
