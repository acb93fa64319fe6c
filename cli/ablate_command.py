"""`blockexport ablate`: what one changed choice of the block does to the loss, on a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blockexport.cli import console, options
from blockexport.models.exit_codes import ExitCode


def ablate(
    text: Annotated[Path, typer.Argument(metavar="TEXT", help="A file, or a folder of .txt files, to train on.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where the checkpoints, the figures and the page go."),
    ],
    swaps: Annotated[
        str | None,
        typer.Option(
            "--swaps",
            metavar="NAME,NAME,...|all",
            help="Choices to change, each by itself: layernorm, norms-around, post-norm, gelu, relu2, geglu, "
            "no-positions, learned-positions, mha, mqa, biases, qk-norm, parallel, tied. Default: eight of them.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=2, help="Trainings of each model.")] = 3,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Steps of each training.")] = 120,
    size: Annotated[
        int, typer.Option("--size", metavar="D", min=8, help="Width of the models; 128 makes a million parameters.")
    ] = 128,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Train small byte-level decoders that differ in one choice of the block, and say what their losses bear out.

    The baseline is a Llama of five layers: RMSNorm before each sublayer, SwiGLU, RoPE, two query heads to each key, no
    biases. A swap changes one choice, at the same seeds and in the same order of the data; where no family of models
    has that choice with the rest of the baseline, both sides get what it comes with. Each run is written as an ordinary
    checkpoint, which onnx, trt and compare take. A difference is called borne out where neither other seeds nor other
    bytes explain it. What was interrupted goes on where it was.

    Example: blockexport ablate TEXT -o swaps --swaps layernorm,gelu,no-positions
    """
    import blockexport
    from blockexport.cli.ablate_view import show
    from blockexport.compare.ablation.swaps import SWAPS, USUAL

    names = list(USUAL) if swaps is None else list(SWAPS) if swaps == "all" else swaps.split(",")
    with console.progress_bar(quiet=quiet or as_json) as progress:
        ablation = blockexport.ablate(
            text, output, swaps=names, seeds=seeds, steps=steps, size=size, threads=threads, progress=progress
        )
    if as_json:
        console.print_json(ablation.to_json())
    else:
        show(ablation, quiet=quiet)
    return ExitCode.GOOD
