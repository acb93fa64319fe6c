"""`blockexport onnx`: a checkpoint in, a proven ONNX bundle out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blockexport.cli import console, options
from blockexport.cli.terminal_export import export
from blockexport.models.attention_forms import AttentionForms
from blockexport.models.errors import UsageError
from blockexport.models.exit_codes import ExitCode
from blockexport.models.precision import Precision
from blockexport.runtime.threads import use_threads

LOGITS = ("all", "last")
POOLINGS = ("last", "mean")


def onnx(
    model: options.Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="BUNDLE", help="Folder to make.")],
    lora: options.Lora = None,
    text_only: options.TextOnly = False,
    fp32: options.Fp32 = False,
    fp16: options.Fp16 = False,
    bf16: options.Bf16 = False,
    max_sequence_length: options.Slots = None,
    headless: Annotated[
        bool, typer.Option("--headless", help="Without embedding and output head: inputs_embeds in, hidden_states out.")
    ] = False,
    logits: Annotated[
        str, options.choice("--logits", LOGITS, "Logits of every position, or of the last one only.")
    ] = "all",
    task: Annotated[
        str | None,
        options.choice("--task", ("embed",), "Embeddings of whole texts instead of logits; see --pooling."),
    ] = None,
    pooling: Annotated[
        str | None,
        options.choice(
            "--pooling",
            POOLINGS,
            "With --task embed: of the last token's state, or of the mean of all. Default: what the model's "
            "modules.json (sentence-transformers) says.",
        ),
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="With --task embed: embeddings of length 1, or as they are. Default: as modules.json says, and of "
            "length 1 with --pooling.",
            show_default=False,
        ),
    ] = None,
    attention: Annotated[
        str,
        options.choice(
            "--attention",
            tuple(AttentionForms),
            "What attention may see: as a mask; as the number of slots that count, which ONNX Runtime's Flash kernel "
            "for CUDA wants and TensorRT does not take; or a graph of each.",
        ),
    ] = AttentionForms.MASKED.value,
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="FIRST:STOP", help="Some layers alone, as a stage: those before STOP."),
    ] = None,
    pt2: Annotated[bool, typer.Option("--pt2", help="Also write model.pt2, the torch.export program.")] = False,
    quantize: options.Quantize = None,
    block_size: options.BlockSize = None,
    head: options.Head = None,
    embedding: options.Embedding = None,
    calibrate: options.Calibrate = None,
    no_compare: options.NoCompare = False,
    no_explain: options.NoExplain = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of a preset's random weights.")] = 0,
    force: options.Force = False,
    beyond_trained_range: options.BeyondTrainedRange = False,
    max_memory: options.MaxMemory = None,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Export MODEL as an ONNX bundle and prove the file against eager PyTorch.

    The bundle holds the graph, the weights as safetensors, the tokenizer, and the parity report. Weights, activations
    and cache are in float32 unless --fp16 or --bf16 is given; norm statistics and RoPE stay in float32. The bundle is
    written to a temporary folder and renamed when it has passed; one that fails is kept as BUNDLE.rejected and the exit
    code is 1. With --quantize the matrices are stored in 4 or 8 bits, and the graph is judged on those weights.

    Example: blockexport onnx ./SmolLM2-135M -o smollm2 --max-sequence-length 512
    """
    if logits not in LOGITS:
        raise UsageError(f"--logits {logits!r} is neither `all` nor `last`")
    precision = options.one_precision("a bundle", fp32=fp32, fp16=fp16, bf16=bf16) or Precision.FP32
    use_threads(threads)
    made = export(
        model,
        output,
        lora=lora,
        text_only=text_only,
        precision=precision,
        max_sequence_length=max_sequence_length,
        headless=headless,
        last_logits_only=logits == "last",
        task=task,
        pooling=pooling,
        normalize=normalize,
        attention=attention,
        layers=layers,
        pt2=pt2,
        quantize=quantize,
        block_size=block_size,
        head=head,
        embedding=embedding,
        calibrate=calibrate,
        compare=not no_compare,
        seed=seed,
        force=force,
        beyond_trained_range=beyond_trained_range,
        max_memory=options.memory_bytes(max_memory),
        no_explain=no_explain,
        quiet=quiet,
        as_json=as_json,
    )
    if as_json:
        report = None if made.report is None else made.report.to_json()
        sealed = {"bundle": str(made.folder), "manifest": made.manifest.to_json()}
        console.print_json({**sealed, "report": report, "not_judged": made.not_judged})
    return made.exit_code
