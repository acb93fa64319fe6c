"""Judge a bundle: tokenizer, weights and graph out of its folder, the checkpoint that it is held against, and whether
its files are those that its manifest lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockexport.compare.audits.artifact_weights import artifact_weights
from blockexport.compare.audits.stored_matrices import StoredCheckpoint
from blockexport.compare.audits.weight_difference import same_values
from blockexport.compare.core.check import CheckResult
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.quantising_cost import NamedRun
from blockexport.compare.judge import Judgement, JudgeOptions, run_checks
from blockexport.compare.judged_cost import APART, IN_INTEGERS, cost_question, with_cost
from blockexport.export.bundle.chain import require_whole
from blockexport.export.bundle.file_check import check_file
from blockexport.export.bundle.manifest import GRAPHS, ONNX_FILE, FileEntry, Manifest, read_manifest
from blockexport.export.preflight import check_memory
from blockexport.export.tokenizer.tokenizer_files import TOKENIZER
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.progress import Progress, silent
from blockexport.runtime.backends import ONNXRUNTIME, backend_named, device_for, require_judgeable, usual_backend
from blockexport.runtime.compute_device import CPU_NAME
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.open import open_decoder
from blockexport.runtime.recorded_source import open_source
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer

if TYPE_CHECKING:
    import onnx_ir as ir

    from blockexport.compare.explain.explanation import Explanation

QUANTISED = (
    "the bundle's weights are quantised: its graph is judged on the weights that it has, with activations in their "
    f"declared type, and those weights, code by code, by the checkpoint's; {APART}"
)
"""A note on every bundle whose weights are."""

_WITH_WEIGHTS = GRAPHS  # the others hold their own


def judge_bundle(
    folder: Path,
    asked: JudgeOptions | None = None,
    *,
    backend: str | None = None,
    model: str | None = None,
    lora: str | Path | None = None,
    max_sequence_length: int | None = None,
    max_memory: int | None = None,
    made_of: Checkpoint | None = None,
    device: str = CPU_NAME,
    progress: Progress = silent,
) -> Judgement:
    """Judge the file that a backend runs, on the checks that apply.

    Args:
        folder: the bundle.
        asked: which checks to run, on what, and whether to look inside where every check passes.
        backend: its name; the usual one for the bundle's precision by default.
        model: the source checkpoint; see `open_source`.
        lora: the adapter that was merged into it; see `open_source`.
        max_sequence_length: declare the file's cache slots anew.
        max_memory: see `check_memory`, which is asked before the work begins; an export has asked already.
        device: where the file is run, and eager PyTorch in its precision beside it; the reference is the processor's.
        made_of: the source as the export had it open, of a bundle whose files were written a moment ago.
        progress: see `run_checks`.

    Raises:
        NotJudgedError: this machine or backend cannot answer, or the source is not there.
        UsageError: an unknown check or backend, a damaged bundle, a checkpoint that is not the source, a cost of what
            is not quantised.
    """
    manifest = read_manifest(folder)
    require_whole(manifest, folder, "judge it with the others, all stages in their order")
    backend = backend or usual_backend(manifest.precision)
    require_judgeable(backend, manifest.precision, device_for(backend, device))
    checkpoint = made_of or open_source(manifest, model, lora)
    if made_of is None:
        check_memory(checkpoint, manifest.interface, manifest.quantisation, max_memory)
    # A changed file is judged as it is, and a note says so.
    decoder = open_decoder(
        folder,
        backend,
        max_sequence_length=max_sequence_length,
        model=model,
        verify="nothing",
        exact=True,
        device=device,
    )
    judged_on, notes = as_stored(checkpoint, folder, manifest)
    if made_of is None:
        notes = (*(checkpoint.notes if model or lora else ()), *notes, *changed_files(folder, manifest, backend))
    options = bundle_options(folder, backend, asked, max_sequence_length=max_sequence_length, device=device)
    not_quantised = "the bundle's weights are not quantised" if manifest.quantisation is None else ""
    question = cost_question(checkpoint, decoder, options, not_quantised)
    judgement = run_checks(decoder, judged_on, options, progress, notes)

    def others() -> list[NamedRun]:
        return [] if options.in_integers is None else [NamedRun(IN_INTEGERS, options.in_integers())]

    return with_cost(judgement, question, judged_on, decoder, others, progress)


def bundle_options(
    folder: Path,
    backend: str = ONNXRUNTIME.name,
    asked: JudgeOptions | None = None,
    *,
    package_folder: Path | None = None,
    max_sequence_length: int | None = None,
    device: str = CPU_NAME,
) -> JudgeOptions:
    """What was `asked`, with all that the bundle in `folder` has for its judgement on `backend`.

    `package_folder` is where an AOTInductor package lies that is still to be judged, and not yet in the bundle.
    `max_sequence_length` is the file's M where it is declared anew, `device` where it is run.
    """

    def growing(first_slots: int) -> Decoder:
        return open_decoder(
            folder,
            backend,
            max_sequence_length=max_sequence_length,
            low_memory=True,  # the weights are in memory once already
            verify="nothing",
            exact=True,
            first_slots=first_slots,
            device=device,
        )

    def in_integers() -> Decoder:
        return open_decoder(folder, backend, max_sequence_length=max_sequence_length, verify="nothing", device=device)

    return replace(
        asked or JudgeOptions(),
        backend=backend,
        encode=BundleTokenizer(folder).encode if (folder / TOKENIZER).is_file() else None,
        weights=artifact_weights(package_folder or folder, backend_named(backend).file),
        graph=(lambda: _graph(folder, backend)) if backend_named(backend).runs_onnx else None,
        growing=growing if backend_named(backend).grows else None,
        in_integers=in_integers if backend_named(backend).rounds_activations else None,
        explain=lambda context, results: _explain(folder, backend, context, results),
    )


def _explain(folder: Path, backend: str, context: CheckContext, results: Sequence[CheckResult]) -> Explanation:
    # Here, because an artifact that passes needs none of it.
    from blockexport.compare.explain.explain import explain
    from blockexport.runtime.replay.replay_graph import ReplayGraph

    graph = backend_named(backend).graph
    if graph is None:
        return explain(context, results, None, f"not located: {backend} runs no ONNX graph to look into")
    return explain(context, results, lambda: ReplayGraph.load(folder / graph))


def _graph(folder: Path, backend: str) -> ir.Graph:
    import onnx_ir

    file = backend_named(backend).file
    assert file is not None
    return onnx_ir.load(folder / file).graph


def as_stored(checkpoint: Checkpoint, folder: Path, manifest: Manifest) -> tuple[Checkpoint, tuple[str, ...]]:
    """What a bundle's file is judged on, and what is to be said about that.

    That is the checkpoint; of a quantised bundle, the checkpoint with the weights that the file has, which the check
    `parameters` holds against its own.

    Raises:
        NotJudgedError: the file dequantises something in a form that the exporter does not write.
    """
    if manifest.quantisation is None:
        return checkpoint, ()
    return StoredCheckpoint(checkpoint, folder, manifest.quantisation), (QUANTISED,)


def require_own_weights(folder: Path, manifest: Manifest, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that somebody named, and whose weights are not those of the bundle.

    Raises:
        UsageError: names the first tensor that differs.
    """
    held = artifact_weights(folder, ONNX_FILE)
    assert held is not None
    weights = held()
    assert weights.read is not None
    for name, shape in weights.shapes.items():
        same_shape = name in checkpoint.entries and tuple(checkpoint.entries[name].shape) == shape
        if not same_shape or not same_values(weights.read(name), checkpoint, name):
            raise UsageError(
                f"{checkpoint.source.reference} is not what {folder} holds: {name} is another one there. Name the "
                "checkpoint that the bundle was exported from, or export this one"
            )


def changed_files(folder: Path, manifest: Manifest, backend: str) -> tuple[str, ...]:
    """One sentence on the files of `backend` that are not the manifest's by size or SHA-256, or none.

    It bears on no verdict: what is judged is the file as it is, and a report that says so is what a hand-made change
    deserves. An engine is not looked at here: opening it refuses another file than the manifest's.
    """
    judged = backend_named(backend).file
    names = [] if judged is None else [judged]
    if judged in _WITH_WEIGHTS and judged in manifest.files:
        names += manifest.files[judged].made_from
    if TOKENIZER in manifest.files:  # it chose the tokens; one that was added later is listed nowhere
        names.append(TOKENIZER)
    changed = [name for name in names if not _is_listed(folder / name, manifest.files.get(name))]
    if not changed:
        return ()
    return (
        f"the content of {' and '.join(changed)} is not what the manifest lists (by size or SHA-256): what is there "
        "now was judged",
    )


def _is_listed(path: Path, entry: FileEntry | None) -> bool:
    if entry is None:
        return False
    try:
        check_file(path, entry, whole=True)
    except UsageError:
        return False
    return True
