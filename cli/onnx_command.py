"""`blockexport onnx`: a checkpoint in, a proven ONNX bundle out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blockexport.cli.judging import NoExplain, Threads, use_threads
from blockexport.cli.terminal_export import export, one_precision
from blockexport.models.errors import UsageError
from blockexport.models.exit_codes import ExitCode
from blockexport.models.precision import Precision


def onnx(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Checkpoint folder, .gguf file, Hugging Face id, or preset name.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="BUNDLE", help="Folder to make.")],
    fp32: Annotated[
        bool, typer.Option("--fp32", help="Weights, activations and cache in float32 (the default).")
    ] = False,
    fp16: Annotated[bool, typer.Option("--fp16", help="In float16; norm statistics and RoPE stay in float32.")] = False,
    bf16: Annotated[
        bool, typer.Option("--bf16", help="In bfloat16; norm statistics and RoPE stay in float32.")
    ] = False,
    max_sequence_length: Annotated[
        int | None,
        typer.Option(
            "--max-sequence-length",
            "-M",
            metavar="M",
            min=1,
            help="Cache slots per row, for prompt and answer. Default: the model's range, at most 2048.",
        ),
    ] = None,
    headless: Annotated[
        bool, typer.Option("--headless", help="Without embedding and output head: inputs_embeds in, hidden_states out.")
    ] = False,
    logits: Annotated[
        str, typer.Option("--logits", metavar="all|last", help="Logits of every position, or of the last one only.")
    ] = "all",
    pt2: Annotated[bool, typer.Option("--pt2", help="Also write model.pt2, the torch.export program.")] = False,
    no_compare: Annotated[bool, typer.Option("--no-compare", help="Seal the bundle without judging it.")] = False,
    no_explain: NoExplain = False,
    seed: Annotated[int, typer.Option("--seed", help="Of the random weights of a preset.")] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an older bundle, if it holds nothing but its own files.")
    ] = False,
    beyond_trained_range: Annotated[
        bool,
        typer.Option("--beyond-trained-range", help="Allow an M of more positions than the model was trained for."),
    ] = False,
    threads: Threads = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, no notes and no table: the verdict alone.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> ExitCode:
    """Export MODEL as an ONNX bundle and prove the file against eager PyTorch.

    The bundle holds the graph, the weights as safetensors, the tokenizer, and the parity report. It is written to a
    temporary folder and renamed when it has passed; one that fails is kept as BUNDLE.rejected and the exit code is 1.

    Example: blockexport onnx ./SmolLM2-135M -o smollm2 --max-sequence-length 512
    """
    if logits not in ("all", "last"):
        raise UsageError(f"--logits {logits!r} is neither `all` nor `last`")
    precision = one_precision("a bundle", fp32=fp32, fp16=fp16, bf16=bf16) or Precision.FP32
    use_threads(threads)
    return export(
        model,
        output,
        precision=precision,
        max_sequence_length=max_sequence_length,
        headless=headless,
        last_logits_only=logits == "last",
        pt2=pt2,
        compare=not no_compare,
        seed=seed,
        force=force,
        beyond_trained_range=beyond_trained_range,
        no_explain=no_explain,
        quiet=quiet,
        as_json=as_json,
    )
