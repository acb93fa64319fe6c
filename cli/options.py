"""Arguments and options that several commands take, each declared once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from blockexport.cli.completion import models
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from blockexport.models.quantisation import EMBEDDINGS, HEADS, LAYERS
from blockexport.models.quantised_matrix import BLOCK_SIZES
from blockexport.runtime.backends import backend_names
from blockexport.runtime.compute_device import FORM


def choice(name: str, offered: Sequence[str], help: str, metavar: str | None = None) -> Any:
    """An option that takes one of the names `offered`, which the shell completes."""
    return typer.Option(
        name, metavar=metavar or "|".join(offered), help=help, autocompletion=lambda incomplete: list(offered)
    )


def _slots(help: str) -> Any:
    return typer.Option("--max-sequence-length", "-M", metavar="M", min=1, help=help)


Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle made by `blockexport onnx`.")]
BundleOrStages = Annotated[
    list[Path],
    typer.Argument(
        metavar="BUNDLE...", help="A bundle made by `blockexport onnx`, or the stages of a model in their order."
    ),
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Checkpoint folder, .gguf file, Hugging Face id, or preset name.",
        autocompletion=models,
    ),
]
ModelOrBundle = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|BUNDLE",
        help="A checkpoint (folder, .gguf file, Hugging Face id, preset), or a bundle that is added to.",
        autocompletion=models,
    ),
]
NewBundle = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="BUNDLE", help="Bundle to make; for a checkpoint only.")
]
Source = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="CHECKPOINT",
        help="The source checkpoint. Default: what the manifest records.",
        autocompletion=models,
    ),
]
Lora = Annotated[
    Path | None,
    typer.Option("--lora", metavar="FOLDER", help="A LoRA adapter, as peft saves it, to merge into the weights."),
]
TextOnly = Annotated[
    bool, typer.Option("--text-only", help="Of a multimodal model the text part, without the tensors of the others.")
]
Backend = Annotated[
    str,
    choice(
        "--backend",
        backend_names(),
        "What runs the model. `blockexport trt` and `blockexport aoti` build what those need.",
    ),
]
Fp32 = Annotated[bool, typer.Option("--fp32", help="In float32.")]
Fp16 = Annotated[bool, typer.Option("--fp16", help="In float16.")]
Bf16 = Annotated[bool, typer.Option("--bf16", help="In bfloat16.")]
Slots = Annotated[
    int | None, _slots("Cache slots per row, for prompt and answer. Default: the model's range, at most 2048.")
]
OtherSlots = Annotated[
    int | None, _slots("Cache slots per row, when other than the bundle's; at most what its RoPE table holds.")
]
BeyondTrainedRange = Annotated[
    bool, typer.Option("--beyond-trained-range", help="Allow an M of more positions than the model was trained for.")
]
Quantize = Annotated[
    str | None,
    choice("--quantize", tuple(LAYERS), "Store the matrices of the layers in 4 or 8 bits, as standard operators."),
]
BlockSize = Annotated[
    int | None,
    typer.Option(
        "--block-size",
        metavar="|".join(map(str, BLOCK_SIZES)),
        help="With --quantize: inputs that share a scale. Default: those of a quantised checkpoint, else 32.",
    ),
]
Head = Annotated[str | None, choice("--head", tuple(HEADS), "With --quantize: the output head. Default: int8.")]
Embedding = Annotated[
    str | None, choice("--embedding", tuple(EMBEDDINGS), "With --quantize: the embedding. Default: int8.")
]
Calibrate = Annotated[
    Path | None,
    typer.Option(
        "--calibrate",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="With --quantize int4: choose the codes that change each matrix's outputs least on this text (UTF-8).",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an older bundle, if it holds nothing but its own files.")]
NoCompare = Annotated[bool, typer.Option("--no-compare", help="Do not judge what was made.")]
NoExplain = Annotated[
    bool, typer.Option("--no-explain", help="Give only the verdict of a file that fails, without place and cause.")
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Run the file as it is judged: quantised weights are multiplied in the declared type, and activations are "
        "not rounded to 8 bits first (onnxruntime). Slower, in more memory.",
    ),
]
Device = Annotated[
    str,
    typer.Option("--device", metavar=FORM, help="Where to run it: the processor, or a CUDA GPU, by number."),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Say nothing of code in the bundle that was not built here (pt2, aoti, engines)."),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        help="Processor threads to compute with. Default: OMP_NUM_THREADS, or the cores this process may use.",
    ),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        help="Begin nothing that takes more memory than this, as 16GB or 14.5GiB. Default: what is available.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result alone, without progress and table.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def one_precision(what: str, *, fp32: bool, fp16: bool, bf16: bool) -> Precision | None:
    """The precision that was asked for, if any. Raises UsageError where several were."""
    asked = [p for p, wanted in zip(Precision, (fp32, fp16, bf16), strict=True) if wanted]
    if len(asked) > 1:
        raise UsageError(f"--{' and --'.join(asked)} contradict each other: {what} has one precision")
    return asked[0] if asked else None


def memory_bytes(asked: str | None) -> int | None:
    """What --max-memory asks for, in bytes. Raises UsageError where it is no size."""
    if asked is None:
        return None
    from blockexport.models.devices import read_memory

    return int(read_memory(asked, "--max-memory"))
