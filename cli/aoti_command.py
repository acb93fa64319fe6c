"""`blockexport aoti`: the decoder compiled ahead of time, for programs with libtorch."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockexport.cli import console, options
from blockexport.cli.judging import show
from blockexport.cli.terminal_export import export
from blockexport.models.errors import UsageError
from blockexport.models.exit_codes import ExitCode
from blockexport.runtime.compute_device import CPU_NAME, ComputeDevice
from blockexport.runtime.threads import use_threads

if TYPE_CHECKING:
    from blockexport.compare.judge import Judgement
    from blockexport.export.bundle.manifest import Manifest
    from blockexport.models.checkpoints.checkpoint import Checkpoint
    from blockexport.models.progress import Progress


def aoti(
    model: options.ModelOrBundle,
    output: options.NewBundle = None,
    source: options.Source = None,
    no_compare: options.NoCompare = False,
    no_explain: options.NoExplain = False,
    force: options.Force = False,
    max_memory: options.MaxMemory = None,
    device: options.Device = CPU_NAME,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
) -> ExitCode:
    """Compile a model with PyTorch's AOTInductor, judge the package, and add it to a bundle.

    The package runs from C++ with libtorch alone, and updates the cache in place. It is code for this machine's
    processor, or with --device cuda for its GPU; others refuse it by name. Compiling takes about a minute for 30 layers
    and needs a C++ compiler. A package that fails is not added, and the exit code is 1. A checkpoint is first exported
    as `blockexport onnx` does; --output and --force are for that.

    Example: blockexport aoti smollm2
    """
    from blockexport.export.aoti import require_compiler
    from blockexport.export.bundle.manifest import MANIFEST

    how: dict[str, Any] = {"no_compare": no_compare, "no_explain": no_explain, "quiet": quiet}
    how["device"] = ComputeDevice.named(device)
    memory = options.memory_bytes(max_memory)
    if (Path(model) / MANIFEST).is_file():
        if output is not None or force:
            raise UsageError("--output and --force are for a checkpoint: the package is added to the bundle itself")
        use_threads(threads)
        return _add(Path(model), source, memory, **how)
    if output is None or source is not None:
        raise UsageError(f"{model} is not a bundle: name one to make first with -o BUNDLE (and leave out --model)")
    require_compiler()  # not after the export
    use_threads(threads)
    asked: dict[str, Any] = {"force": force, "max_memory": memory, "no_explain": no_explain, "quiet": quiet}
    made = export(model, output, compare=not no_compare, **asked)
    return made.exit_code or _add(output, None, memory, **how)


def _add(
    bundle: Path,
    source: str | None,
    max_memory: int | None,
    *,
    device: ComputeDevice,
    no_compare: bool,
    no_explain: bool,
    quiet: bool,
) -> ExitCode:
    from blockexport.compare.judged_bundle import require_own_weights
    from blockexport.export.aoti import check_compile_memory, compile_package
    from blockexport.export.bundle.bundle import add_files
    from blockexport.export.bundle.chain import require_whole
    from blockexport.export.bundle.check_graph import read_graph
    from blockexport.export.bundle.embedding import require_no_embeddings
    from blockexport.export.bundle.file_check import check_artifact
    from blockexport.export.bundle.manifest import ONNX_FILE, read_manifest
    from blockexport.export.bundle.own_verdict import require_not_bad
    from blockexport.export.bundle.stage import addition
    from blockexport.runtime.recorded_source import open_source

    manifest = read_manifest(bundle)
    require_whole(manifest, bundle, "compile the model in one piece")
    require_no_embeddings(manifest, bundle, "aoti compiles what gives logits or hidden states")
    if manifest.quantisation is not None:
        raise UsageError(f"{bundle} is quantised, and aoti has no quantised form: export it without --quantize")
    require_not_bad(bundle, manifest)
    read_graph(bundle, manifest)
    # The package gets its weights from the checkpoint, and goes on record as made from the bundle's.
    check_artifact(bundle, manifest, ONNX_FILE, "whole")
    checkpoint = open_source(manifest, source)
    if source is not None:
        require_own_weights(bundle, manifest, checkpoint)
    check_compile_memory(checkpoint, manifest.interface, max_memory)
    # Inside of the bundle, so that what passed is moved and not copied.
    with addition(bundle) as folder:
        with console.progress_bar(quiet=quiet) as progress:
            progress("compiling", 0, 1)
            names = compile_package(checkpoint, manifest.interface, manifest.rope_table_rows, folder, device.torch)
            progress("compiling", 1, 1)
            judged = None if no_compare else _judge(bundle, folder, manifest, checkpoint, progress, device)
        code = ExitCode.GOOD if judged is None else show(judged, no_explain=no_explain, quiet=quiet).exit_code
        if code is ExitCode.BAD:
            console.say("the package is bad and was not added")
            return code
        sources = {name: manifest.files[name].sha256 for name in manifest.files[ONNX_FILE].made_from}
        add_files(bundle, {name: folder / name for name in names}, sources)
    use = f"blockexport cpp {shlex.quote(str(bundle))} -o chat --backend aoti"
    console.say(f"the package was added to {bundle}: {use}", quiet=quiet)
    return code


def _judge(
    bundle: Path,
    folder: Path,
    manifest: Manifest,
    checkpoint: Checkpoint,
    progress: Progress,
    device: ComputeDevice,
) -> Judgement:
    from blockexport.compare.judge import run_checks
    from blockexport.compare.judged_bundle import bundle_options
    from blockexport.runtime.aoti_decoder import AotiDecoder
    from blockexport.runtime.backends import AOTI, Opening

    decoder = AotiDecoder(Opening(AOTI.name, bundle, manifest, device=device), folder)
    return run_checks(
        decoder, checkpoint, bundle_options(bundle, AOTI.name, package_folder=folder, device=str(device)), progress
    )
