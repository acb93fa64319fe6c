"""`blockexport bench`: how fast a bundle runs here, beside the machine's own limits and beside other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockexport.cli import console, options
from blockexport.cli.completion import models
from blockexport.cli.running_code import warn_of_code
from blockexport.models.exit_codes import ExitCode
from blockexport.runtime.backends import backend_names
from blockexport.runtime.compute_device import CPU_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable


def bench(
    bundle: options.Bundle,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="PATH",
            help="What to compare it with: a bundle, a folder of onnxruntime-genai's, or a .gguf file (llama.cpp). "
            "genai:BUNDLE runs a bundle in onnxruntime-genai, NAME:BUNDLE on the backend NAME, cpp:PROJECT this one in "
            "C++. May be given several times.",
            autocompletion=models,
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        options.choice(
            "--backend",
            backend_names(),
            help="What runs the bundle; may be given several times. Default: onnxruntime.",
        ),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(
            "--context",
            "-T",
            metavar="T",
            min=1,
            help="Tokens of the prompt, which are in the cache when decoding begins; may be given several times. "
            "Default: 64, and 1024 or what the cache holds.",
        ),
    ] = None,
    batch_size: Annotated[
        list[int] | None,
        typer.Option(
            "--batch-size", "-B", metavar="B", min=1, help="Rows at once; may be given several times. Default: 1."
        ),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Timed tokens of each row, after the prompt.")] = 16,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Turns of each side; fewer than 5 are for trying out.")
    ] = 5,
    device: options.Device = CPU_NAME,
    trust: options.Trust = False,
    threads: options.Threads = None,
    max_sequence_length: options.OtherSlots = None,
    model: options.Source = None,
    exact: options.Exact = False,
    low_memory: Annotated[
        bool, typer.Option("--low-memory", help="Map the weights instead of repacking them (onnxruntime).")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also draw the figures on a page of one file.")
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Measure load time, time to the first token, speed of prefill and decoding, memory and, where told, energy.

    Beside them stand the memory bandwidth and the matrix peak of this machine, measured in the same run, and the share
    of the speed that they allow. Every side takes its turn in a process of its own, runs each case once untimed and
    once timed, greedily, on the same tokens with the same number of threads. Figures are medians over the rounds.

    Example: blockexport bench smollm2 --against SmolLM2-135M-Instruct.Q4_1.gguf --html bench.html
    """
    import blockexport
    from blockexport.cli.bench_page import MARK, to_page
    from blockexport.cli.bench_view import show
    from blockexport.cli.marked_file import marked_place, write_marked
    from blockexport.export.bundle.manifest import MANIFEST, read_manifest
    from blockexport.export.bundle.own_verdict import known_bad

    for path in _files(bundle, against or []):
        if (path / MANIFEST).is_file() and (reason := known_bad(path, read_manifest(path))) is not None:
            console.say(f"warning: {reason}")
    for name in {*(backend or ()), *(text.partition(":")[0] for text in against or ())} & {*backend_names()}:
        for path in _files(bundle, against or []):
            if (path / MANIFEST).is_file():
                warn_of_code(path, name, trust=trust)
    place = None if html is None else marked_place(html, "page", MARK, _files(bundle, against or []))
    with console.progress_bar(quiet=quiet or as_json) as progress:
        result = blockexport.bench_bundle(
            bundle,
            backends=backend or (),
            against=against or (),
            contexts=context or (),
            batch_sizes=batch_size or (1,),
            steps=steps,
            rounds=rounds,
            threads=threads,
            max_sequence_length=max_sequence_length,
            model=model,
            exact=exact,
            low_memory=low_memory,
            device=device,
            progress=progress,
        )
    if place is not None:
        write_marked(place, to_page(result), MARK)
    if as_json:
        console.print_json(result.to_json())
    else:
        show(result)
        if place is not None:
            console.say(f"page: {html}", quiet=quiet)
    return ExitCode.GOOD


def _files(bundle: Path, against: Iterable[str]) -> list[Path]:
    """What is read, and must not be written over."""
    named = [Path(part) for text in against for part in (text, text.partition(":")[2]) if part]
    return [path for path in (bundle, *named) if path.exists()]
