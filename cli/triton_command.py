"""`blockexport triton`: a model repository for Triton Inference Server."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from blockexport.cli import console, options
from blockexport.models.errors import UsageError
from blockexport.models.exit_codes import ExitCode
from blockexport.runtime.backends import ONNXRUNTIME, backend_named


def triton(
    bundle: options.Bundle,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="REPOSITORY", help="The model repository to make, or to add to."),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="What Triton calls the model. Default: the bundle's folder.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", "-B", metavar="B", min=1, help="Answers at once.")] = 8,
    queue: Annotated[int, typer.Option("--queue", min=0, help="Requests that may wait for a row.")] = 64,
    backend: options.Backend = ONNXRUNTIME.name,
    no_decoder: Annotated[
        bool, typer.Option("--no-decoder", help="Leave out NAME-decoder, the ONNX file as a model of its own.")
    ] = False,
    quiet: options.Quiet = False,
) -> ExitCode:
    """Write a bundle as models for Triton Inference Server: NAME takes and gives text, NAME-decoder is the ONNX file.

    NAME runs in Triton's Python backend and hosts the scheduler of `blockexport serve`: continuous batching on B rows,
    streams, seeds, cancellation. The Python there needs blockexport. NAME-decoder is for programs that write their own
    loop, in the ONNX Runtime backend. A README.md in NAME shows how both are called. The bundle is copied.

    Example: blockexport triton smollm2 -o models --rows 8
    """
    from blockexport.export.bundle.manifest import read_manifest
    from blockexport.export.triton_repository import Asked, can_hold_decoder, write_repository
    from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer

    manifest = read_manifest(bundle)
    record = backend_named(backend)
    if record.file is not None and record.file not in manifest.files:
        raise UsageError(f"{bundle} has no {record.file}, which the backend {backend} runs")
    if manifest.interface.ends.to_logits:
        BundleTokenizer(bundle)  # which Triton would miss only when it starts
    if not no_decoder and not can_hold_decoder(manifest):
        console.say(
            f"note: Triton's ONNX Runtime backend has no {manifest.precision}, so there is no decoder by itself",
            quiet=quiet,
        )
        no_decoder = True
    asked = Asked(name or bundle.resolve().name, rows, queue, backend, not no_decoder)
    folders = write_repository(bundle, output, asked)
    console.say(
        f"wrote {' and '.join(map(str, folders))}; next:\n  tritonserver --model-repository {shlex.quote(str(output))}",
        quiet=quiet,
    )
    return ExitCode.GOOD
