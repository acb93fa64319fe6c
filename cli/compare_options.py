"""The options of `blockexport compare` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blockexport.cli.options import choice
from blockexport.models.precision import Precision
from blockexport.runtime.backends import backend_names, usual_backend

BundlesIfAny = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="BUNDLE...",
        help="Folder that `blockexport onnx` made (omitted with --onnx), or the stages of a model in their order.",
        show_default=False,
    ),
]
BackendByPrecision = Annotated[
    str | None,
    choice(
        "--backend",
        backend_names(),
        f"What runs the bundle: {', '.join(backend_names())}. Default: {usual_backend(Precision.FP32)}, and "
        f"{usual_backend(Precision.BF16)} for bf16.",
        metavar="NAME",
    ),
]
MergedLora = Annotated[
    str | None,
    typer.Option(
        "--lora",
        metavar="FOLDER|none",
        help="The LoRA adapter that was merged into the source; none: --model has it merged already. Default: what "
        "the manifest records.",
    ),
]
OtherFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--onnx",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Judge this ONNX decoder of another tool against --model; twice, where prompt and steps have a graph "
        "each.",
    ),
]
Mapped = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="ROLE=NAME",
        help="With --onnx: what the file calls an input or output, such as input_ids=tokens or "
        "'past_key_values.{i}.key=k_{i}'; may be repeated.",
    ),
]
Checks = Annotated[
    list[str] | None, typer.Option("--check", metavar="NAME", help="Run this check only; may be repeated.")
]
Locate = Annotated[
    bool,
    typer.Option(
        "--locate",
        help="Look inside the graph even when every check passes: each value against eager's, layer by layer. "
        "A file that fails is looked into without it.",
    ),
]
Cost = Annotated[
    bool,
    typer.Option(
        "--cost",
        help="Also measure what quantising costs: the quantised file beside the checkpoint on a text, its KL, "
        "perplexity and top-1 agreement, and by which matrices.",
    ),
]
MaxKl = Annotated[
    float | None,
    typer.Option(
        "--max-kl",
        metavar="NATS",
        help="Fail where the mean KL that --cost measures is more than this; without it nothing there can fail.",
    ),
]
DecodeSteps = Annotated[
    int | None,
    typer.Option("--decode-steps", metavar="N", min=1, help="Teacher-forced steps after the prefill. Default: 64."),
]
TextFile = Annotated[
    Path | None,
    typer.Option("--text", metavar="FILE", exists=True, dir_okay=False, help="Judge on this text (UTF-8)."),
]
TokenIds = Annotated[str | None, typer.Option("--tokens", metavar="ID,ID,...", help="Judge on these token ids.")]
ReportFolder = Annotated[
    Path | None, typer.Option("--report", metavar="DIR", help="Write report.json, .md and .html into this folder.")
]
