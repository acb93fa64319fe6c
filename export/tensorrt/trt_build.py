"""From a bundle to a serialised engine: lint, parse, audit, build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockexport.export.bundle.check_graph import read_graph
from blockexport.export.bundle.engine_entry import Profile
from blockexport.export.bundle.manifest import ONNX_FILE, Manifest
from blockexport.export.lint.lint_graph import require_clean
from blockexport.export.tensorrt.trt_adapter import Adapter, BuildOptions, load_backend
from blockexport.export.tensorrt.trt_audit import Audit, audit
from blockexport.export.tensorrt.trt_fusion import why_not_fused
from blockexport.export.tensorrt.trt_network import (
    add_profiles,
    attentions,
    give_queries_their_own_positions,
    parse,
    set_key_value_lengths,
)
from blockexport.models.errors import BlockexportError, NotJudgedError, UsageError
from blockexport.models.native_output import captured_stderr
from blockexport.models.progress import Progress, silent


@dataclass(frozen=True)
class Request:
    """What is to be built.

    Attributes:
        backend: the name of the backend.
        folder: a bundle, sealed or still staged.
        manifest: its manifest.
        targets: compute capabilities, from `Adapter.targets`.
        profiles: optimisation profiles, in the engine's order.
        options: the builder's options.
    """

    backend: str
    folder: Path
    manifest: Manifest
    targets: Sequence[str]
    profiles: Sequence[Profile]
    options: BuildOptions


@dataclass(frozen=True)
class Built:
    """What a build leaves beside the engine.

    Attributes:
        audit: what the network passed.
        timing_cache: the one after the build, if one was asked for.
    """

    audit: Audit
    timing_cache: bytes | None


def build_engine(request: Request, progress: Progress = silent) -> tuple[Any, Built]:
    """Build an engine, a buffer, from a bundle's ONNX file: the work of a process of its own (see `trt_process`).

    Args:
        request: what to build; its options are checked against the backend here.
        progress: called from TensorRT's progress monitor.

    Raises:
        UsageError: an option the backend lacks, a trap in the graph, a failed audit, or a build that TensorRT gives up.
        NotJudgedError: it cannot be done on this machine.
    """
    adapter, manifest, options = load_backend(request.backend), request.manifest, request.options
    adapter.check_options(options)
    adapter.check_precision(manifest.precision, request.targets)
    path = request.folder / ONNX_FILE
    # TensorRT reads weights where a place is no number, and from files that were cut off.
    read_graph(request.folder, manifest)
    require_clean(path)
    progress("parsing", 0, 2)
    builder = adapter.builder()
    network, parser = parse(adapter, builder, path)
    progress("parsing", 1, 2)
    not_fused = why_not_fused(adapter, manifest, request.profiles, request.targets)
    progress("parsing", 2, 2)
    passed = audit(adapter, network, manifest, not_fused)
    for attention in attentions(adapter, network):
        attention.decomposable = not_fused is not None
    if adapter.is_rtx:
        give_queries_their_own_positions(adapter, network)
    kept_alive = [parser, set_key_value_lengths(adapter, network) if options.key_value_lengths else None]
    config = adapter.config(builder, request.targets, options)
    add_profiles(builder, network, config, request.profiles)
    monitor = _monitor(adapter.trt, progress)
    config.progress_monitor = monitor
    with captured_stderr():
        engine = builder.build_serialized_network(network, config)
    del kept_alive
    if monitor.interrupt is not None:
        raise monitor.interrupt
    if engine is None:
        raise _failure(adapter, adapter.log.drain(), options)
    timing = None if options.timing_cache is None else bytes(config.get_timing_cache().serialize())
    return engine, Built(passed, timing)


def _failure(adapter: Adapter, error: str, options: BuildOptions) -> BlockexportError:
    """What a build that came to nothing means for the user."""
    reason = error.removeprefix("IBuilder::buildSerializedNetwork: ") or "it gives no reason"
    out_of_memory = "out of memory" in reason.lower() or "OutOfMemory" in reason
    if options.workspace_mib is not None and (out_of_memory or "workspace" in reason.lower()):
        return UsageError(
            f"{adapter.name} {adapter.version} finds no kernel within --workspace {options.workspace_mib} MiB: "
            "give more, or leave the option out"
        )
    if out_of_memory:
        return NotJudgedError(
            f"{adapter.name} {adapter.version} ran out of memory while building ({reason}): choose a smaller "
            "--max-batch-size or --max-prefill, or a machine with more memory"
        )
    return UsageError(
        f"{adapter.name} {adapter.version} gave the build up: {reason}. The graph passed lint and the audit, "
        "so please report this message"
    )


def _monitor(trt: Any, progress: Progress) -> Any:
    """TensorRT's progress monitor, heard by `progress`; phases of few steps are left out."""
    few = 4

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.interrupt: BaseException | None = None
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps

        def step_complete(self, phase_name: str, step: int) -> bool:
            steps = self._steps.get(phase_name, 0)
            # An exception must not cross the library: it is kept, and the build asked to stop.
            try:
                if steps >= few:
                    progress(phase_name.lower(), min(step + 1, steps), steps)
            except BaseException as error:
                self.interrupt = error
            return self.interrupt is None

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

    return Monitor()
