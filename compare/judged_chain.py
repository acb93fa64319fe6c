"""Judge the stages of a model together: the files that are run are each stage's own, and what is held against the
checkpoint is what comes out of the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blockexport.compare.audits.artifact_weights import initializers
from blockexport.compare.audits.stored_matrices import StoredCheckpoint
from blockexport.compare.chain_graph import joined_graph, opened_graph
from blockexport.compare.core.check import CheckResult
from blockexport.compare.core.context import CheckContext
from blockexport.compare.explain.explain import explain
from blockexport.compare.explain.explanation import Explanation
from blockexport.compare.judge import Judgement, JudgeOptions, run_checks
from blockexport.compare.judged_bundle import QUANTISED, changed_files
from blockexport.compare.report.report import Report
from blockexport.export.bundle.chain import described, read_chain
from blockexport.export.preflight import check_memory
from blockexport.export.tokenizer.tokenizer_files import TOKENIZER
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.stage_checkpoint import StageCheckpoint
from blockexport.models.interface import Interface
from blockexport.models.progress import Progress, silent
from blockexport.models.typed_call import typed_call
from blockexport.models.whole_number import whole
from blockexport.runtime.backends import backend_named, require_judgeable, usual_backend
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.open import open_chain
from blockexport.runtime.recorded_source import open_source
from blockexport.runtime.replay.replay_graph import ReplayGraph
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer


def judge_chain(
    folders: Sequence[Path],
    asked: JudgeOptions | None = None,
    *,
    backend: str | None = None,
    model: str | None = None,
    lora: str | Path | None = None,
    max_sequence_length: int | None = None,
    max_memory: int | None = None,
    progress: Progress = silent,
) -> Judgement:
    """Judge stages as the one model that they are, on the checks that apply.

    Args:
        folders: of the stages, in their order.
        asked: which checks to run, on what, and whether to look inside where every check passes.
        backend: its name; the usual one for the stages' precision by default.
        model: the source checkpoint; see `open_source`.
        lora: the adapter that was merged into it; see `open_source`.
        max_sequence_length: declare the files' cache slots anew.
        max_memory: see `check_memory`.
        progress: see `run_checks`.

    Raises:
        NotJudgedError: this machine or backend cannot answer, or the source is not there.
        UsageError: they are no stages of one model, or some are missing; or as `judge_bundle`.
    """
    manifests = read_chain(folders)
    first, asked = manifests[0], asked or JudgeOptions()
    backend = backend or usual_backend(first.precision)
    require_judgeable(backend, first.precision)

    def opened(*, exact: bool = True, first_slots: int | None = None) -> Decoder:
        how: dict[str, Any] = {"max_sequence_length": max_sequence_length, "model": model, "verify": "nothing"}
        return open_chain(folders, backend, exact=exact, first_slots=first_slots, **how)

    stage = open_source(first, model, lora)
    assert isinstance(stage, StageCheckpoint)
    interface = Interface(stage.whole.config, first.precision.element, first.max_sequence_length)
    check_memory(stage.whole, interface, first.quantisation, max_memory)
    starts = [one.stage.first for one in manifests if one.stage is not None]
    graph, base = joined_graph(folders, starts)
    checkpoint: Checkpoint = stage.whole
    if first.quantisation is not None:
        checkpoint = StoredCheckpoint(checkpoint, base, first.quantisation, graph)
    runner = backend_named(backend)

    def look(context: CheckContext, results: Sequence[CheckResult]) -> Explanation:
        if runner.graph is None:
            return explain(context, results, None, f"not located: {backend} runs no ONNX graph to look into")
        return _explained(
            explain(context, results, lambda: ReplayGraph(opened_graph(graph, base), base)), folders, starts
        )

    options = replace(
        asked,
        backend=backend,
        encode=BundleTokenizer(folders[0]).encode if (folders[0] / TOKENIZER).is_file() else None,
        weights=(lambda: initializers(graph, base)) if runner.runs_onnx else None,
        graph=(lambda: opened_graph(graph, base).graph) if runner.runs_onnx else None,
        growing=(lambda slots: opened(first_slots=slots)) if runner.grows else None,
        in_integers=(lambda: opened(exact=False)) if runner.rounds_activations else None,
        explain=look,
    )
    notes = [f"{len(folders)} stages: {'; '.join(map(described, folders, manifests))}"]
    notes += stage.notes if model or lora else ()
    notes += [QUANTISED] if first.quantisation is not None else []
    notes += [
        note for folder, one in zip(folders, manifests, strict=True) for note in changed_files(folder, one, backend)
    ]
    return run_checks(opened(), checkpoint, options, progress, notes)


def _explained(found: Explanation, folders: Sequence[Path], starts: Sequence[int]) -> Explanation:
    """With the stage that the first difference is in."""
    location = None if found.search is None else found.search.location
    if location is None or location.layer is None:
        return found
    stage = max(number for number, start in enumerate(starts) if start <= location.layer)
    said = f"layer {location.layer} is in the stage {folders[stage]} (its layer {location.layer - starts[stage]})"
    return replace(found, remarks=(said, *found.remarks))


@typed_call
def compare_chain(
    stages: Sequence[str | Path],
    *,
    backend: str | None = None,
    model: str | None = None,
    lora: str | Path | None = None,
    max_sequence_length: int | None = None,
    max_memory: int | None = None,
    checks: Sequence[str] = (),
    decode_steps: int | None = None,
    text: str | None = None,
    token_ids: Sequence[int] | None = None,
    locate: bool = False,
    explain: Callable[[Judgement], Report] | None = None,
    progress: Progress = silent,
) -> Report:
    """Judge stages, one after the other, as the one model that they are, whose arguments are those of `compare_bundle`.

    Args:
        stages: the folders, in the order of their layers.

    Raises:
        NotJudgedError: this machine or backend cannot answer.
        UsageError: they are no stages of one model, or some are missing; or as `compare_bundle`.
    """
    asked = JudgeOptions(
        checks=tuple(checks),
        decode_steps=whole("decode_steps", decode_steps, least=1),
        text=text,
        token_ids=token_ids,
        locate=locate,
    )
    slots = whole("max_sequence_length", max_sequence_length, least=1)
    folders = [Path(stage) for stage in stages]
    judgement = judge_chain(
        folders,
        asked,
        backend=backend,
        model=model,
        lora=lora,
        max_sequence_length=slots,
        max_memory=whole("max_memory", max_memory, least=1),
        progress=progress,
    )
    return judgement.explained(progress) if explain is None else explain(judgement)
