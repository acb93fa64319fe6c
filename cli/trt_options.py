"""The options of `blockexport trt` that are about building the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blockexport.cli.options import choice
from blockexport.runtime.backends import ENGINES

LEVELS = ("ampere-plus", "same-compute-capability")
DEFAULT_BATCH = 8
MOST_MIB = 1 << 20

EngineBackend = Annotated[
    str | None,
    choice(
        "--backend",
        [one.name for one in ENGINES],
        "tensorrt builds for the GPU in this machine; tensorrt-rtx for any that it serves, also without one here. "
        "Default: whichever is installed, tensorrt before tensorrt-rtx.",
    ),
]
ComputeCapability = Annotated[
    list[str] | None,
    typer.Option(
        "--compute-capability",
        metavar="8.9",
        help="Compute capability of the GPU to build for; tensorrt-rtx only. May be repeated: one engine "
        "then serves all of them. Default: the GPU in the machine.",
    ),
]
FloatEmbedding = Annotated[
    str | None,
    choice("--embedding", ("float",), "With --quantize: the embedding, which an engine has unquantised."),
]
MaxBatchSize = Annotated[
    int,
    typer.Option("--max-batch-size", min=1, help="Most rows per step. With 1, tensorrt-rtx stores many weights twice."),
]
MaxPrefill = Annotated[
    int | None,
    typer.Option(
        "--max-prefill",
        min=1,
        help="Most tokens per row and step; longer prompts go in chunks. Default: M, at most 512.",
    ),
]
Workspace = Annotated[
    int | None,
    typer.Option("--workspace", metavar="MIB", min=1, max=MOST_MIB, help="Most scratch memory a kernel may take."),
]
TimingCache = Annotated[
    Path | None,
    typer.Option(
        "--timing-cache",
        metavar="FILE",
        dir_okay=False,
        help="Reuse measured kernel times from FILE and add to it; pins the choice of kernels. tensorrt only.",
    ),
]
OptimizationLevel = Annotated[
    int | None,
    typer.Option(
        "--builder-optimization-level", min=0, max=5, help="0 builds fastest, 5 searches longest. tensorrt only."
    ),
]
StripWeights = Annotated[
    bool,
    typer.Option(
        "--strip-weights",
        help="Leave the weights out; they are read from the bundle when it is loaded. Needs a GPU to build.",
    ),
]
HardwareCompatibility = Annotated[
    str | None,
    choice(
        "--hardware-compatibility",
        LEVELS,
        "Let the engine run on other GPUs than this one, for some speed. tensorrt only.",
    ),
]
VersionCompatible = Annotated[
    bool, typer.Option("--version-compatible", help="Let later TensorRT versions load the engine. tensorrt only.")
]
KeyValueLengths = Annotated[
    bool,
    typer.Option(
        "--key-value-lengths",
        help="Tell attention how many slots are filled, beside the mask. Not proven on a GPU yet. tensorrt only.",
    ),
]
