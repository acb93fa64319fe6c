"""An export, from a checkpoint to a sealed bundle: write, judge, seal.

Graph and weights are written by `export`, run by `runtime`, judged by `compare`, and only then is the bundle sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockexport.models.attention_forms import AttentionForms
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.exit_codes import ExitCode
from blockexport.models.interface import Ends, Interface
from blockexport.models.precision import Precision
from blockexport.models.progress import Progress, silent
from blockexport.models.quantisation import Quantisation, asked_quantisation
from blockexport.models.typed_call import typed_call
from blockexport.models.whole_number import whole

if TYPE_CHECKING:
    from blockexport.compare.judge import Judgement
    from blockexport.compare.report.report import Report
    from blockexport.export.bundle.manifest import Manifest
    from blockexport.export.bundle.stage import Stage
    from blockexport.export.weights.calibration import Calibration
    from blockexport.models.checkpoints.checkpoint import Checkpoint

Explainer = Callable[["Judgement"], "Report"]
"""How a judgement becomes a report: with the place and the cause of a difference, or with the verdict alone."""


@dataclass(frozen=True)
class ExportedBundle:
    """Where a bundle went, and what is known of it.

    Attributes:
        folder: the bundle; one that was judged and found bad is kept beside its place as `NAME.rejected`.
        manifest: what it holds.
        report: the judgement of its graph, or of the first of two that is bad; None where it was not asked for, or
            could not be made.
        not_judged: why it could not be judged on this machine.
    """

    folder: Path
    manifest: Manifest
    report: Report | None = None
    not_judged: str | None = None

    @property
    def exit_code(self) -> ExitCode:
        """Of a command that made it."""
        if self.report is not None:
            return self.report.exit_code
        return ExitCode.GOOD if self.not_judged is None else ExitCode.NOT_JUDGED


@typed_call
def export_bundle(
    model: str | Path,
    output: str | Path,
    *,
    lora: str | Path | None = None,
    text_only: bool = False,
    precision: Precision | str = Precision.FP32,
    max_sequence_length: int | None = None,
    headless: bool = False,
    last_logits_only: bool = False,
    task: str | None = None,
    pooling: str | None = None,
    normalize: bool | None = None,
    layers: str | None = None,
    pt2: bool = False,
    quantize: str | None = None,
    block_size: int | None = None,
    head: str | None = None,
    embedding: str | None = None,
    calibrate: str | Path | None = None,
    attention: AttentionForms | str = AttentionForms.MASKED,
    compare: bool = True,
    seed: int = 0,
    force: bool = False,
    beyond_trained_range: bool = False,
    max_memory: int | None = None,
    explain: Explainer | None = None,
    progress: Progress = silent,
    note: Callable[[str], None] = lambda text: None,
) -> ExportedBundle:
    """Export a checkpoint as an ONNX bundle, judge the file, and seal it.

    The bundle is written to a hidden folder beside its place and renamed when it has been judged: it is there whole or
    not at all.

    Args:
        model: a checkpoint's folder, a GGUF file, a Hugging Face id, or a preset.
        output: the folder to make.
        lora: the folder of a LoRA adapter as peft saves it, which is merged into the weights.
        text_only: export the text part of a multimodal model, without the tensors of its other parts.
        precision: of weights, activations and cache; norm statistics and RoPE stay in float32.
        max_sequence_length: cache slots M of a row; by default the model's range, at most 2048; of embeddings no more
            than the tokens to which the model's files cut texts.
        headless: `inputs_embeds` in, `hidden_states` out, without embedding and output head.
        last_logits_only: logits of each row's last position only.
        task: `embed`: an embedding of each text, made of its tokens' hidden states; None for logits.
        pooling: `last` or `mean`, with `task`; by default as the model's sentence-transformers files say.
        normalize: bring embeddings to length 1; by default as those files say, and with `pooling` yes.
        layers: `16:24`, the layers from 16 on and before 24, as a stage, which `compare_chain` judges with the others.
        pt2: also write the `torch.export` program.
        quantize: `int4` or `int8`: quantise the matrices of the layers; None leaves all weights in the precision.
        block_size: 32, 64 or 128 inputs that share a scale, with `quantize`; by default those of a
            checkpoint whose codes are taken over, and 32 otherwise.
        head: `int4`, `int8` or `float`, with `quantize`: the output head; int8 by default.
        embedding: `int8` or `float`, with `quantize`; int8 by default.
        calibrate: a text (UTF-8), with `quantize`: matrices in 4 bits are quantised for what enters them on it.
        attention: `masked`; `nonpad`, the form for ONNX Runtime's fastest CUDA kernel, which TensorRT does not take; or
            `both`, a graph of each over the same weights.
        compare: judge each graph before the bundle is sealed.
        seed: of a preset's random weights.
        force: replace an older bundle, if it holds nothing but its own files.
        beyond_trained_range: allow more slots than the model was trained for.
        max_memory: bytes that judging may take; what is available by default.
        explain: makes the report of a judgement; by default a difference is located and diagnosed.
        progress: told how far the work is.
        note: told what the user should know about the checkpoint.

    Raises:
        UsageError: a checkpoint that cannot be read or exported, something in the way of the output, a disk too small.
        NotJudgedError: there is too little memory to judge the bundle.
    """
    from blockexport.export.asked_ends import AskedEnds
    from blockexport.export.asked_slots import asked_slots
    from blockexport.export.bundle.chain import JUDGED_TOGETHER, refuse_beside_layers, stage_record
    from blockexport.export.bundle.stage import staged
    from blockexport.export.output.disk import space_errors
    from blockexport.export.output.place import bundle_place, inputs_of
    from blockexport.export.preflight import check_room
    from blockexport.models.checkpoints.sources import open_checkpoint
    from blockexport.models.checkpoints.stage_checkpoint import StageCheckpoint
    from blockexport.models.checkpoints.taken_schemes import suited

    asked, attention = AskedEnds(headless, last_logits_only, task, pooling, normalize), AttentionForms.named(attention)
    asked.check(layers, head)
    if layers is not None:
        refuse_beside_layers(
            headless=headless,
            logits_last=last_logits_only,
            attention=attention is not AttentionForms.MASKED,
            pt2=pt2,
            calibrate=calibrate,
        )
    element = Precision.named(precision).element
    slots, seed = whole("max_sequence_length", max_sequence_length, least=1), whole("seed", seed)
    quantisation = asked_quantisation(
        quantize, headless, block_size=block_size, head=head, embedding=embedding, calibrate=calibrate
    )
    if pt2 and quantisation is not None:
        raise UsageError("--pt2 has no quantised form: leave it out, or --quantize")
    output, inputs = Path(output), inputs_of(model, lora, calibrate)
    bundle_place(output, inputs, force=force)  # before the model is read, or fetched
    opening = {"text_only": text_only, "headless": asked.without_head}
    checkpoint = open_checkpoint(str(model), seed=seed, lora=lora, **opening)
    ends, longest = asked.of(checkpoint, note)
    if quantisation is not None:
        quantisation = suited(quantisation, checkpoint, block_size_asked=block_size is not None)
    part = None if layers is None else stage_record(layers, checkpoint.config.num_hidden_layers)
    if part is not None:
        chosen = range(part.first, part.stop)
        checkpoint, ends = StageCheckpoint(checkpoint, chosen), Ends.of_stage(chosen, part.layers)
    slots = asked_slots(checkpoint, slots, longest, beyond_trained_range=beyond_trained_range)
    interface = Interface(checkpoint.config, element, slots, ends)
    memory, judged_here = whole("max_memory", max_memory, least=1), compare and part is None
    numbers = check_room(
        checkpoint, interface, output, judged=judged_here, pt2=pt2, quantisation=quantisation, max_memory=memory
    )
    if numbers is not None:
        note(numbers)
    calibration = None
    if calibrate is not None:
        from blockexport.compare.calibration_text import calibrated

        calibration = calibrated(checkpoint, Path(calibrate))
    with staged(output, inputs, force=force) as stage:
        with space_errors(stage.folder):
            how = interface, quantisation, calibration, attention
            manifest = replace(_write(checkpoint, stage.folder, *how, pt2, progress, note), stage=part)
        reports: dict[str, Report] = {}
        not_judged = JUDGED_TOGETHER if compare and part is not None else None
        for graph in manifest.graphs if judged_here else ():
            judged = _judge(checkpoint, stage.folder, manifest, graph, progress)
            if isinstance(judged, str):
                not_judged = judged
            else:
                reports[graph] = judged.explained(progress) if explain is None else explain(judged)
        return _settle(stage, manifest, reports, not_judged)


def _write(
    checkpoint: Checkpoint,
    folder: Path,
    interface: Interface,
    quantisation: Quantisation | None,
    calibration: Calibration | None,
    attention: AttentionForms,
    pt2: bool,
    progress: Progress,
    note: Callable[[str], None],
) -> Manifest:
    """Everything but the proof. The manifest is written, too: the runtimes that judge the bundle read it."""
    from blockexport.export.bundle.bundle import file_entries
    from blockexport.export.bundle.manifest import write_manifest
    from blockexport.export.onnx_export import export_onnx
    from blockexport.runtime.text.bundle_tokenizer import check_tokenizer
    from blockexport.runtime.text.chat_turns import write_chat_turns

    notes: list[str] = []  # told when nothing was refused

    def texts(made: Path) -> list[str]:
        check_tokenizer(made, checkpoint.config.vocab_size, notes.append)
        return write_chat_turns(made, notes.append)

    manifest = export_onnx(
        checkpoint,
        folder,
        interface,
        quantisation=quantisation,
        calibration=calibration,
        attention=attention,
        progress=progress,
        texts=texts,
        note=notes.append,
    )
    for line in notes:
        note(line)
    if pt2:
        from blockexport.export.pt2 import write_pt2

        made = file_entries(folder, [write_pt2(checkpoint, interface, folder)])
        manifest = replace(manifest, files={**manifest.files, **made})
    write_manifest(folder, manifest)
    return manifest


def _judge(checkpoint: Checkpoint, folder: Path, manifest: Manifest, graph: str, progress: Progress) -> Judgement | str:
    """What the checks say of a graph in `folder`, or why it cannot be judged on this machine."""
    from blockexport.compare.judged_bundle import judge_bundle
    from blockexport.runtime.backends import usual_backend

    backend = usual_backend(manifest.precision, graph)
    try:
        return judge_bundle(folder, backend=backend, made_of=checkpoint, progress=progress)
    except NotJudgedError as error:
        return str(error)


def _settle(stage: Stage, manifest: Manifest, reports: Mapping[str, Report], not_judged: str | None) -> ExportedBundle:
    """Seal the bundle with the reports on its graphs, or put it aside where one was judged and found bad."""
    from blockexport.compare.core.check import Verdict
    from blockexport.compare.report.report_files import write_report
    from blockexport.export.bundle.built_here import note_built_here
    from blockexport.export.bundle.bundle import file_entries
    from blockexport.export.bundle.golden_file import write_golden
    from blockexport.export.bundle.manifest import ONNX_FILE
    from blockexport.export.bundle.own_verdict import REPORT_FOLDERS
    from blockexport.export.bundle.sbom import with_sbom
    from blockexport.export.output.disk import space_errors

    for graph, report in reports.items():
        place = REPORT_FOLDERS[graph]
        names = [f"{place}/{name}" for name in write_report(report, stage.folder / place)]
        if graph == ONNX_FILE and report.golden is not None:
            with space_errors(stage.folder):
                names.append(write_golden(stage.folder, report.golden))
        made_from = {name: manifest.files[name].sha256 for name in (graph, *manifest.files[graph].made_from)}
        manifest = replace(manifest, files={**manifest.files, **file_entries(stage.folder, names, made_from)})
    manifest = with_sbom(stage.folder, manifest)
    bad = next((report for report in reports.values() if report.verdict is Verdict.FAIL), None)
    if bad is not None:
        return ExportedBundle(stage.reject(manifest), manifest, bad)
    stage.seal(manifest)
    note_built_here(manifest, manifest.files)
    return ExportedBundle(stage.target, manifest, None if not_judged else reports.get(ONNX_FILE), not_judged)
