"""What blockexport does with a bundle, as functions: judge it again, build an engine, measure its speed.

Every function raises a `BlockexportError` (`blockexport.models.errors`) with one message for what the caller can fix:
`UsageError` for wrong use and bad input, `NotJudgedError` for what this machine cannot do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from blockexport.bundle_export import Explainer
from blockexport.models.progress import Progress, silent
from blockexport.models.typed_call import typed_call
from blockexport.models.whole_number import whole
from blockexport.runtime.compute_device import CPU_NAME

if TYPE_CHECKING:
    from blockexport.compare.report.report import Report
    from blockexport.export.bundle.manifest import Manifest
    from blockexport.export.tensorrt.trt_adapter import BuildOptions
    from blockexport.runtime.bench.bench_result import BenchResult

DEFAULT_PREFILL = 512  # tokens per row and step of an engine, where the cache is not smaller
DEFAULT_BATCH = 8  # rows of an engine


class BuiltEngine(NamedTuple):
    """An engine in its bundle; `timing_cache` is None where none was asked for."""

    name: str
    manifest: Manifest
    timing_cache: bytes | None


@typed_call
def compare_bundle(
    bundle: str | Path,
    *,
    backend: str | None = None,
    model: str | None = None,
    lora: str | Path | None = None,
    max_sequence_length: int | None = None,
    checks: Sequence[str] = (),
    decode_steps: int | None = None,
    text: str | None = None,
    token_ids: Sequence[int] | None = None,
    locate: bool = False,
    cost: bool = False,
    max_kl: float | None = None,
    max_memory: int | None = None,
    device: str = CPU_NAME,
    explain: Explainer | None = None,
    progress: Progress = silent,
) -> Report:
    """Judge a bundle's file against eager PyTorch in float64 on its source checkpoint.

    Args:
        bundle: the folder.
        backend: what runs the file; by default ONNX Runtime, and the replay for bfloat16.
        model: the source checkpoint; by default where the manifest says.
        lora: the adapter that was merged into it; by default where the manifest says, and `none` for a `model` that it
            has been merged into already.
        max_sequence_length: declare the file's cache slots anew.
        checks: names of checks to run; all that apply by default.
        decode_steps: teacher-forced steps after the prefill; 64, or what fits, by default.
        text: what to judge on instead of the built-in passage.
        token_ids: what to judge on instead of any text.
        locate: look inside the graph even where every check passes.
        cost: of a quantised bundle, also measure what quantising costs: on `text` or `token_ids`, at least 2,000
            tokens, or on a built-in chapter.
        max_kl: fail where that is more, as a mean KL divergence in nats; asks for `cost`.
        max_memory: bytes that judging may take; what is available by default.
        device: `cpu`, or `cuda:N` for a GPU.
        explain: makes the report of a judgement; by default a difference is located and diagnosed.
        progress: told how far the work is.

    Raises:
        NotJudgedError: this machine or backend cannot answer.
        UsageError: an unknown check or backend, a damaged bundle, a checkpoint that is not the source, a cost of what
            is not quantised.
    """
    from blockexport.compare.judge import JudgeOptions
    from blockexport.compare.judged_bundle import judge_bundle

    asked = JudgeOptions(
        checks=tuple(checks),
        decode_steps=whole("decode_steps", decode_steps, least=1),
        text=text,
        token_ids=token_ids,
        locate=locate,
        cost=cost,
        max_kl=max_kl,
    )
    slots = whole("max_sequence_length", max_sequence_length, least=1)
    judgement = judge_bundle(
        Path(bundle),
        asked,
        backend=backend,
        model=model,
        lora=lora,
        max_sequence_length=slots,
        max_memory=whole("max_memory", max_memory, least=1),
        device=device,
        progress=progress,
    )
    return judgement.explained(progress) if explain is None else explain(judgement)


@typed_call
def build_engine(
    bundle: str | Path,
    *,
    backend: str | None = None,
    compute_capabilities: Sequence[str] = (),
    max_batch_size: int = DEFAULT_BATCH,
    max_prefill: int | None = None,
    options: BuildOptions | None = None,
    max_memory: int | None = None,
    progress: Progress = silent,
) -> BuiltEngine:
    """Build a TensorRT engine from a bundle's graph and add it to the bundle. Engines have never been executed by us.

    Args:
        bundle: the folder.
        backend: `tensorrt` or `tensorrt-rtx`; by default whichever is installed, in this order.
        compute_capabilities: of the GPUs it is for, such as `8.9`; by default that of the GPU in the machine.
        max_batch_size: most rows per step.
        max_prefill: most tokens per row and step; by default M, at most 512.
        options: of the builder.
        max_memory: bytes that the build may take; what is available by default.
        progress: told how far the work is.

    Raises:
        NotJudgedError: TensorRT is not installed, there is no GPU and none was named, or there is too little memory.
        RejectedBundleError: the bundle was judged and found bad.
        UsageError: a graph that TensorRT would misread, options that the backend ignores, a GPU it does not serve.
    """
    from blockexport.export.bundle.chain import require_whole
    from blockexport.export.bundle.check_graph import read_graph
    from blockexport.export.bundle.embedding import require_no_embeddings
    from blockexport.export.bundle.engine_entry import engine_name
    from blockexport.export.bundle.manifest import read_manifest
    from blockexport.export.tensorrt.trt_adapter import BuildOptions, choose_backend
    from blockexport.export.tensorrt.trt_build import Request
    from blockexport.export.tensorrt.trt_engine import (
        check_memory,
        check_sources,
        engine_entry,
        place_engine,
        staged_engine,
    )
    from blockexport.export.tensorrt.trt_network import bundle_profiles
    from blockexport.export.tensorrt.trt_process import build_engine_file

    folder, options = Path(bundle), options or BuildOptions()
    rows, prefill = whole("max_batch_size", max_batch_size, least=1), whole("max_prefill", max_prefill, least=1)
    adapter = choose_backend(backend)
    targets = adapter.targets(compute_capabilities)
    adapter.check_options(options)
    manifest = read_manifest(folder)
    require_whole(manifest, folder, "build an engine of the model in one piece")
    require_no_embeddings(manifest, folder, "engines are built of what gives logits or hidden states")
    adapter.check_precision(manifest.precision, targets)
    read_graph(folder, manifest)  # which tells a forged M from the bundle's
    slots = manifest.max_sequence_length
    profiles = bundle_profiles(manifest, rows, prefill or min(DEFAULT_PREFILL, slots))
    check_memory(folder, manifest, whole("max_memory", max_memory, least=1))
    check_sources(folder, manifest)
    name = engine_name(adapter.name, targets, manifest.precision)
    with staged_engine(folder, manifest, name, weightless=options.strip_weights) as partial:
        request = Request(adapter.name, folder, manifest, targets, profiles, options)
        built = build_engine_file(request, partial, progress)
        entry = engine_entry(adapter, request, built)
        manifest = place_engine(folder, partial, name, entry, manifest)
    return BuiltEngine(name, manifest, built.timing_cache)


@typed_call
def bench_bundle(
    bundle: str | Path,
    *,
    backends: Sequence[str] = (),
    against: Sequence[str | Path] = (),
    contexts: Sequence[int] = (),
    batch_sizes: Sequence[int] = (1,),
    steps: int = 16,
    rounds: int = 5,
    threads: int | None = None,
    max_sequence_length: int | None = None,
    model: str | None = None,
    exact: bool = False,
    low_memory: bool = False,
    device: str = CPU_NAME,
    progress: Progress = silent,
) -> BenchResult:
    """Measure how fast a bundle runs on this machine, beside what the machine can do at most and beside other tools.

    Each side (the bundle on each backend, then what it is held against) is opened and runs every case, once to warm up
    and once to be timed, in a process of its own, with the same tokens and threads; the sides take turns.

    Args:
        bundle: the folder.
        backends: what runs it; ONNX Runtime by default.
        against: other bundles, folders of onnxruntime-genai's, GGUF files (run by llama.cpp); `genai:FOLDER` runs a
            bundle in onnxruntime-genai, `NAME:FOLDER` one on the backend NAME, `cpp:FOLDER` this one in C++.
        contexts: tokens in the cache before decoding; by default a short and a long prompt.
        batch_sizes: rows that are run at once.
        steps: timed tokens of each row.
        rounds: turns of each side. A median of fewer than five is for trying out.
        threads: of the processor; OMP_NUM_THREADS, or the cores this process may use, by default.
        max_sequence_length: declare the bundle's cache slots anew.
        model: the source checkpoint, for the backend `eager`.
        exact: run bundles as they are judged: see `open_decoder`.
        low_memory: map the weights of bundles instead of repacking them (onnxruntime).
        device: of bundles: `cpu`, or `cuda:N` for a GPU.
        progress: told how far the work is.

    Raises:
        UsageError: no such bundle, backend or file, more tokens than a cache holds, sides of different vocabularies.
        NotJudgedError: what a side needs is not installed or not on this machine, or its process was killed.
    """
    from blockexport.runtime.backends import ONNXRUNTIME
    from blockexport.runtime.bench.bench import run_bench
    from blockexport.runtime.bench.bench_plan import BenchCase, BenchPlan, OpenedAs, usual_contexts
    from blockexport.runtime.bench.meter import processor_name
    from blockexport.runtime.bench.sides import bundle_side, check_sides, other_side
    from blockexport.runtime.threads import chosen_threads

    slots, steps = whole("max_sequence_length", max_sequence_length, least=1), whole("steps", steps, least=1)
    how = OpenedAs(slots, model, exact, low_memory, device)
    sides = [bundle_side(Path(bundle), name, how) for name in backends or (ONNXRUNTIME.name,)]
    sides += [other_side(str(named), sides[0]) for named in against]
    contexts = contexts or usual_contexts(min(side.capacity for side in sides), steps)
    cases = tuple(
        BenchCase(whole("batch_size", rows, least=1), whole("context", context, least=1))
        for rows in batch_sizes
        for context in contexts
    )
    plan = BenchPlan(cases, steps, whole("rounds", rounds, least=1), chosen_threads(threads))
    check_sides(sides, plan)
    return run_bench(sides, plan, processor_name(), progress)
