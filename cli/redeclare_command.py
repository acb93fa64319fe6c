"""`blockexport redeclare`: another number of cache slots in a bundle, without exporting again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blockexport.cli import console, options
from blockexport.models.exit_codes import ExitCode


def redeclare(
    bundle: options.Bundle,
    max_sequence_length: Annotated[
        int,
        typer.Option(
            "--max-sequence-length",
            "-M",
            metavar="M",
            help="Cache slots per row, for prompt and answer: from what the bundle's golden vectors need to the rows "
            "of its RoPE table.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="A bundle to make. Default: BUNDLE itself is changed."),
    ] = None,
    force: options.Force = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Declare M cache slots in a bundle, for ONNX Runtime programs and onnxruntime-genai.

    Nothing in the graph depends on M but its declared shapes. model.onnx, genai_config.json and the manifest are
    rewritten together. The parity report and engines were made for the old M and are left out; `blockexport compare`
    and `blockexport trt` make them again. blockexport's own commands need no such file: they take -M themselves.

    Example: blockexport redeclare smollm2 -M 4096 -o smollm2-4096
    """
    from blockexport.export.redeclare import redeclare as declare

    manifest, dropped = declare(bundle, max_sequence_length, output, force=force)
    place = output or bundle
    if as_json:
        console.print_json({"bundle": str(place), "manifest": manifest.to_json(), "left_out": dropped})
        return ExitCode.GOOD
    console.say(f"{place} has {manifest.max_sequence_length} cache slots", quiet=quiet)
    if dropped:
        console.say(f"note: dropped, because they were made for another M: {', '.join(dropped)}", quiet=quiet)
    return ExitCode.GOOD
