"""`blockexport trt`: a TensorRT engine from a checkpoint or a bundle, audited before it is built."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockexport.cli import console, options
from blockexport.cli.command_line import given_options
from blockexport.cli.terminal_export import export
from blockexport.cli.trt_summary import print_engine
from blockexport.models.errors import BlockexportError, UsageError
from blockexport.models.exit_codes import ExitCode
from blockexport.runtime.backends import ENGINES
from blockexport.runtime.threads import use_threads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from blockexport.models.precision import Precision

BACKEND_NAMES = [one.name for one in ENGINES]
LEVELS = ("ampere-plus", "same-compute-capability")
DEFAULT_BATCH = 8
MOST_MIB = 1 << 20

_FOR_A_CHECKPOINT = (
    *("--output", "--lora", "--max-sequence-length", "--force", "--beyond-trained-range"),
    *("--quantize", "--block-size", "--head", "--embedding", "--calibrate"),
)


def trt(
    context: typer.Context,
    model: options.ModelOrBundle,
    output: options.NewBundle = None,
    fp16: options.Fp16 = False,
    bf16: options.Bf16 = False,
    fp32: options.Fp32 = False,
    backend: Annotated[
        str | None,
        options.choice(
            "--backend",
            BACKEND_NAMES,
            "tensorrt builds for the GPU in this machine; tensorrt-rtx for any that it serves, also without one here. "
            "Default: whichever is installed, tensorrt before tensorrt-rtx.",
        ),
    ] = None,
    compute_capability: Annotated[
        list[str] | None,
        typer.Option(
            "--compute-capability",
            metavar="8.9",
            help="Compute capability of the GPU to build for; tensorrt-rtx only. May be repeated: one engine "
            "then serves all of them. Default: the GPU in the machine.",
        ),
    ] = None,
    lora: options.Lora = None,
    max_sequence_length: options.Slots = None,
    quantize: options.Quantize = None,
    block_size: options.BlockSize = None,
    head: options.Head = None,
    embedding: Annotated[
        str | None,
        options.choice("--embedding", ("float",), "With --quantize: the embedding, which an engine has unquantised."),
    ] = None,
    calibrate: options.Calibrate = None,
    max_batch_size: Annotated[
        int,
        typer.Option(
            "--max-batch-size", min=1, help="Most rows per step. With 1, tensorrt-rtx stores many weights twice."
        ),
    ] = DEFAULT_BATCH,
    max_prefill: Annotated[
        int | None,
        typer.Option(
            "--max-prefill",
            min=1,
            help="Most tokens per row and step; longer prompts go in chunks. Default: M, at most 512.",
        ),
    ] = None,
    workspace: Annotated[
        int | None,
        typer.Option("--workspace", metavar="MIB", min=1, max=MOST_MIB, help="Most scratch memory a kernel may take."),
    ] = None,
    timing_cache: Annotated[
        Path | None,
        typer.Option(
            "--timing-cache",
            metavar="FILE",
            dir_okay=False,
            help="Reuse measured kernel times from FILE and add to it; pins the choice of kernels. tensorrt only.",
        ),
    ] = None,
    builder_optimization_level: Annotated[
        int | None,
        typer.Option(
            "--builder-optimization-level", min=0, max=5, help="0 builds fastest, 5 searches longest. tensorrt only."
        ),
    ] = None,
    strip_weights: Annotated[
        bool,
        typer.Option(
            "--strip-weights",
            help="Leave the weights out; they are read from the bundle when it is loaded. Needs a GPU to build.",
        ),
    ] = False,
    hardware_compatibility: Annotated[
        str | None,
        options.choice(
            "--hardware-compatibility",
            LEVELS,
            "Let the engine run on other GPUs than this one, for some speed. tensorrt only.",
        ),
    ] = None,
    version_compatible: Annotated[
        bool, typer.Option("--version-compatible", help="Let later TensorRT versions load the engine. tensorrt only.")
    ] = False,
    key_value_lengths: Annotated[
        bool,
        typer.Option(
            "--key-value-lengths",
            help="Tell attention how many slots are filled, beside the mask. Not proven on a GPU yet. tensorrt only.",
        ),
    ] = False,
    no_explain: options.NoExplain = False,
    force: options.Force = False,
    beyond_trained_range: options.BeyondTrainedRange = False,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Build a TensorRT engine and add it to a bundle.

    The graph is looked through for what TensorRT misreads (see `blockexport lint`), parsed, and the parsed network
    compared with the graph, before anything is built: caches updated in place, precision of every matrix product, norm
    statistics and RoPE in float32, names, types and shapes. The engine has two profiles, prefill and decode. It goes to
    BUNDLE/engines, and what was found to BUNDLE/manifest.json.

    From a checkpoint the ONNX bundle is made and judged first, as `blockexport onnx` does; --output, a precision, -M,
    --quantize and its details, --force and --beyond-trained-range are for that. --fp32 is without TF32, and attention
    has no fused kernel there.

    No engine was ever executed by the authors of blockexport, who had no GPU for it, and standard TensorRT has not been
    run at all. Judge the engine where its GPU is: blockexport compare BUNDLE --backend tensorrt.

    Example: blockexport trt smollm2 --backend tensorrt-rtx --compute-capability 8.9

    Example: blockexport trt ./SmolLM2-135M -o smollm2 --fp16
    """
    from blockexport.export.bundle.manifest import MANIFEST
    from blockexport.export.tensorrt.trt_adapter import BuildOptions, choose_backend
    from blockexport.library import build_engine

    if hardware_compatibility not in (None, *LEVELS):
        raise UsageError(f"--hardware-compatibility {hardware_compatibility!r} is neither {' nor '.join(LEVELS)}")
    into_bundle = (Path(model) / MANIFEST).is_file()
    precision = options.one_precision("an engine", fp32=fp32, fp16=fp16, bf16=bf16)
    adapter = choose_backend(backend)
    targets = adapter.targets(compute_capability or ())
    build = BuildOptions(
        workspace_mib=workspace,
        timing_cache=_read_timing_cache(timing_cache),
        builder_optimization_level=builder_optimization_level,
        strip_weights=strip_weights,
        hardware_compatibility=hardware_compatibility,
        version_compatible=version_compatible,
        key_value_lengths=key_value_lengths,
    )
    adapter.check_options(build)
    if precision is not None:
        adapter.check_precision(precision, targets)
    code = ExitCode.GOOD
    if into_bundle:
        folder = Path(model)
        if wrong := [word for word in given_options(context) if word in _FOR_A_CHECKPOINT]:
            raise UsageError(
                f"{wrong[0]} is for a checkpoint; this is a bundle, and the engine is added to it: leave it out"
            )
        _check_precision(folder, precision, given_options(context, _ONCE))
    else:
        folder = _named_output(model, output, precision)
        embedding = embedding or ("float" if quantize is not None else None)
        details = {"block_size": block_size, "head": head, "embedding": embedding, "calibrate": calibrate}
        _check_quantisation(model, quantize, **details)
        use_threads(threads)
        quiet = quiet or as_json
        made = export(
            model,
            folder,
            lora=lora,
            precision=precision,
            max_sequence_length=max_sequence_length,
            quantize=quantize,
            **details,
            force=force,
            beyond_trained_range=beyond_trained_range,
            no_explain=no_explain,
            quiet=quiet,
            as_json=as_json,
        )
        code = made.exit_code
        if code is ExitCode.BAD:
            console.say("no engine was built, because the graph did not pass")
            return code
    remains = contextlib.nullcontext() if into_bundle else _bundle_remains(folder)
    with remains, console.progress_bar(quiet=quiet or as_json) as progress:
        name, manifest, times = build_engine(
            folder,
            backend=adapter.name,
            compute_capabilities=targets,
            max_batch_size=max_batch_size,
            max_prefill=max_prefill,
            options=build,
            progress=progress,
        )
    if timing_cache is not None and times is not None:
        from blockexport.export.output.atomic_write import replace_file

        replace_file(timing_cache, times)
    print_engine(folder, name, manifest, as_json=as_json, quiet=quiet)
    return code


def _check_quantisation(model: str, quantize: str | None, **details: Any) -> None:
    """Before anything is written: whether an engine can be built from a bundle that is quantised so."""
    from blockexport.bundle_export import asked_quantisation
    from blockexport.export.tensorrt.trt_network import check_quantisation
    from blockexport.models.checkpoints.sources import open_checkpoint
    from blockexport.models.checkpoints.taken_schemes import suited

    quantisation = asked_quantisation(quantize, **details)
    if quantisation is not None:
        checkpoint = open_checkpoint(model)
        asked = details["block_size"] is not None
        check_quantisation(checkpoint.config, suited(quantisation, checkpoint, block_size_asked=asked))


def _read_timing_cache(path: Path | None) -> bytes | None:
    if path is None:
        return None
    from blockexport.models.regular_file import is_there, read_bytes

    return read_bytes(path) if is_there(path) else b""


def _named_output(model: str, output: Path | None, precision: Precision | None) -> Path:
    if output is None:
        raise UsageError(f"{model} is not a bundle, and an engine is added to one: name it with -o BUNDLE")
    if precision is None:
        raise UsageError("say in which precision: --fp16, --bf16 or --fp32")
    return output


@contextlib.contextmanager
def _bundle_remains(folder: Path) -> Iterator[None]:
    """A bundle that is made and judged is kept when no engine can be built from it: say so."""
    try:
        yield
    except BlockexportError as error:
        go_on = f"blockexport trt {shlex.quote(str(folder))}"
        raise type(error)(f"{error}. The bundle {folder} is made and judged: go on from it with {go_on} ...") from error


_ONCE = ("model", "output", "fp16", "bf16", "fp32", "force", "beyond_trained_range", "max_sequence_length")
"""What another command for the same engine says in its own way."""


def _check_precision(folder: Path, precision: Precision | None, others: Sequence[str]) -> None:
    from blockexport.export.bundle.manifest import read_manifest

    manifest = read_manifest(folder)
    if precision is None or precision is manifest.precision:
        return
    slots = manifest.max_sequence_length
    beyond = ["--beyond-trained-range"] if slots > manifest.config.max_position_embeddings else []
    quantised = [] if manifest.quantisation is None else manifest.quantisation.options()
    source = shlex.quote(manifest.source.reference)
    if manifest.source.adapter is not None:
        source += f" --lora {shlex.quote(manifest.source.adapter.reference)}"
    command = [
        "blockexport trt",
        source,
        "-o NEW_BUNDLE",
        f"--{precision}",
        f"-M {slots}",
        *beyond,
        *quantised,
        *others,
    ]
    raise UsageError(
        f"{folder} is a bundle in {manifest.precision.value}, and precision is typed into its graph: --{precision} "
        f"needs a bundle of its own, {' '.join(command)}"
    )
