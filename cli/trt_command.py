"""`blockexport trt`: a TensorRT engine from a checkpoint or a bundle, audited before it is built."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from blockexport.cli import console, options, trt_options
from blockexport.cli.command_line import given_options
from blockexport.cli.terminal_export import export
from blockexport.cli.trt_summary import print_engine
from blockexport.models.errors import BlockexportError, UsageError
from blockexport.models.exit_codes import ExitCode
from blockexport.runtime.threads import use_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockexport.models.precision import Precision

_FOR_A_CHECKPOINT = (
    *("--output", "--lora", "--text-only", "--max-sequence-length", "--force", "--beyond-trained-range"),
    *("--quantize", "--block-size", "--head", "--embedding", "--calibrate"),
)


def trt(
    context: typer.Context,
    model: options.ModelOrBundle,
    output: options.NewBundle = None,
    fp16: options.Fp16 = False,
    bf16: options.Bf16 = False,
    fp32: options.Fp32 = False,
    backend: trt_options.EngineBackend = None,
    compute_capability: trt_options.ComputeCapability = None,
    lora: options.Lora = None,
    text_only: options.TextOnly = False,
    max_sequence_length: options.Slots = None,
    quantize: options.Quantize = None,
    block_size: options.BlockSize = None,
    head: options.Head = None,
    embedding: trt_options.FloatEmbedding = None,
    calibrate: options.Calibrate = None,
    max_batch_size: trt_options.MaxBatchSize = trt_options.DEFAULT_BATCH,
    max_prefill: trt_options.MaxPrefill = None,
    workspace: trt_options.Workspace = None,
    timing_cache: trt_options.TimingCache = None,
    builder_optimization_level: trt_options.OptimizationLevel = None,
    strip_weights: trt_options.StripWeights = False,
    hardware_compatibility: trt_options.HardwareCompatibility = None,
    version_compatible: trt_options.VersionCompatible = False,
    key_value_lengths: trt_options.KeyValueLengths = False,
    no_explain: options.NoExplain = False,
    force: options.Force = False,
    beyond_trained_range: options.BeyondTrainedRange = False,
    max_memory: options.MaxMemory = None,
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
    from blockexport.export.bundle.own_verdict import REPORT
    from blockexport.export.tensorrt.trt_adapter import BuildOptions, choose_backend
    from blockexport.library import build_engine

    if hardware_compatibility not in (None, *trt_options.LEVELS):
        raise UsageError(
            f"--hardware-compatibility {hardware_compatibility!r} is neither {' nor '.join(trt_options.LEVELS)}"
        )
    memory = options.memory_bytes(max_memory)
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
        _check_bundle(context, folder, precision)
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
            text_only=text_only,
            precision=precision,
            max_sequence_length=max_sequence_length,
            quantize=quantize,
            **details,
            force=force,
            beyond_trained_range=beyond_trained_range,
            max_memory=memory,
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
            max_memory=memory,
            progress=progress,
        )
    if timing_cache is not None and times is not None:
        from blockexport.export.output.atomic_write import replace_file

        replace_file(timing_cache, times)
    print_engine(folder, name, manifest, as_json=as_json, quiet=quiet)
    if not quiet and REPORT not in manifest.files:
        shown = shlex.quote(str(folder))
        console.say(f"note: {folder} was exported without being judged; `blockexport compare {shown}` judges its graph")
    return code


def _check_quantisation(model: str, quantize: str | None, **details: Any) -> None:
    """Before anything is written: whether an engine can be built from a bundle that is quantised so."""
    from blockexport.export.tensorrt.trt_network import check_quantisation
    from blockexport.models.checkpoints.sources import open_checkpoint
    from blockexport.models.checkpoints.taken_schemes import suited
    from blockexport.models.quantisation import asked_quantisation

    quantisation = asked_quantisation(quantize, **details)
    if quantisation is not None:
        checkpoint = open_checkpoint(model, text_only=True)
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


def _check_bundle(context: typer.Context, folder: Path, precision: Precision | None) -> None:
    """Whether an engine in this precision can be added to a bundle, and nothing is asked for that made the bundle."""
    from blockexport.export.bundle.manifest import read_manifest

    if wrong := [word for word in given_options(context) if word in _FOR_A_CHECKPOINT]:
        raise UsageError(
            f"{wrong[0]} is for a checkpoint; this is a bundle, and the engine is added to it: leave it out"
        )
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
        *given_options(context, _ONCE),
    ]
    raise UsageError(
        f"{folder} is a bundle in {manifest.precision.value}, and precision is typed into its graph: --{precision} "
        f"needs a bundle of its own, {' '.join(command)}"
    )
