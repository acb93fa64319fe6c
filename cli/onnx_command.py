"""`blockexport onnx`: a checkpoint in, a proven ONNX bundle out.

Four parts meet here: export writes graph and weights, runtime runs them, compare judges them, and only then is the
bundle sealed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockexport.cli import console
from blockexport.cli.judging import NoExplain, Threads, explained, show_verdict, use_threads

if TYPE_CHECKING:
    from blockexport.compare.judge import Judgement
    from blockexport.compare.report.report import Report
    from blockexport.export.bundle.manifest import Manifest
    from blockexport.export.bundle.stage import Stage
    from blockexport.export.graph.onnx_graph import GraphOptions
    from blockexport.models.checkpoints.checkpoint import Checkpoint
    from blockexport.models.progress import Progress

DEFAULT_SLOTS = 2048
PARITY = "parity"  # the folder of the report inside the bundle
EXIT_NOT_JUDGED = 3


def onnx(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Checkpoint folder, .gguf file, Hugging Face id, or preset name.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="BUNDLE", help="Folder to make.")],
    fp32: Annotated[
        bool, typer.Option("--fp32", help="Weights, activations and cache in float32 (the default).")
    ] = False,
    fp16: Annotated[bool, typer.Option("--fp16", help="In float16; norm statistics and RoPE stay in float32.")] = False,
    bf16: Annotated[
        bool, typer.Option("--bf16", help="In bfloat16; norm statistics and RoPE stay in float32.")
    ] = False,
    max_sequence_length: Annotated[
        int | None,
        typer.Option(
            "--max-sequence-length",
            "-M",
            metavar="M",
            min=1,
            help=f"Cache slots per row, for prompt and answer. Default: the model's range, at most {DEFAULT_SLOTS}.",
        ),
    ] = None,
    headless: Annotated[
        bool, typer.Option("--headless", help="Without embedding and output head: inputs_embeds in, hidden_states out.")
    ] = False,
    logits: Annotated[
        str, typer.Option("--logits", metavar="all|last", help="Logits of every position, or of the last one only.")
    ] = "all",
    pt2: Annotated[bool, typer.Option("--pt2", help="Also write model.pt2, the torch.export program.")] = False,
    no_compare: Annotated[bool, typer.Option("--no-compare", help="Seal the bundle without judging it.")] = False,
    no_explain: NoExplain = False,
    seed: Annotated[int, typer.Option("--seed", help="Of the random weights of a preset.")] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an older bundle, if it holds nothing but its own files.")
    ] = False,
    beyond_trained_range: Annotated[
        bool,
        typer.Option("--beyond-trained-range", help="Allow an M of more positions than the model was trained for."),
    ] = False,
    threads: Threads = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, no notes and no table: the verdict alone.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> int:
    """Export MODEL as an ONNX bundle and prove the file against eager PyTorch.

    The bundle holds the graph, the weights as safetensors, the tokenizer, and the parity report. It is written to a
    temporary folder and renamed when it has passed; one that fails is kept as BUNDLE.rejected and the exit code is 1.

    Example: blockexport onnx ./SmolLM2-135M -o smollm2 --max-sequence-length 512
    """
    from blockexport.export.bundle.stage import staged
    from blockexport.export.output.place import bundle_place, inputs_of
    from blockexport.export.preflight import check_room
    from blockexport.models.checkpoints.sources import open_checkpoint

    inputs = inputs_of(model)
    bundle_place(output, inputs, force=force)  # before the model is read, or fetched
    precision = _precision(fp32=fp32, fp16=fp16, bf16=bf16)
    checkpoint = open_checkpoint(model, seed=seed)
    options = _options(checkpoint, precision, max_sequence_length, headless, logits, beyond_trained_range)
    use_threads(threads)
    numbers = check_room(checkpoint, options, output, judged=not no_compare)
    if numbers is not None:
        console.say(f"note: {numbers}", quiet=quiet)
    with staged(output, inputs, force=force) as stage:
        with console.progress_bar(quiet=quiet) as progress:
            manifest = _export(checkpoint, stage.folder, options, pt2, progress, quiet=quiet)
            judged = None if no_compare else _judge(checkpoint, stage.folder, manifest, progress)
        if judged is None or isinstance(judged, str):
            outcome = _settle(stage, manifest, judged)
        else:
            if no_explain:
                judged = replace(judged, explain=None)
            report = _explained(judged, as_json=as_json, quiet=quiet)
            outcome = replace(_settle(stage, manifest, report), shown=judged.explain is not None)
    _tell(outcome, as_json=as_json, quiet=quiet)
    return outcome.exit_code


@dataclass(frozen=True)
class _Outcome:
    """Where the bundle went, and what is known of it: a report, or the reason why there is none.

    `shown`: the verdict was printed before it was explained.
    """

    folder: Path
    manifest: Manifest
    report: Report | None = None
    unjudged: str | None = None
    shown: bool = False

    @property
    def exit_code(self) -> int:
        if self.report is not None:
            return self.report.exit_code
        return 0 if self.unjudged is None else EXIT_NOT_JUDGED


def _precision(*, fp32: bool, fp16: bool, bf16: bool) -> Any:
    from blockexport.models.errors import UsageError
    from blockexport.models.precision import Precision

    asked = [p for p, wanted in zip(Precision, (fp32, fp16, bf16), strict=True) if wanted]
    if len(asked) > 1:
        raise UsageError(f"--{' and --'.join(asked)} contradict each other: a bundle has one precision")
    return asked[0] if asked else Precision.FP32


def _options(
    checkpoint: Checkpoint, precision: Any, slots: int | None, headless: bool, logits: str, beyond: bool
) -> GraphOptions:
    from blockexport.export.graph.onnx_graph import GraphOptions
    from blockexport.models.errors import UsageError

    reach = checkpoint.config.max_position_embeddings
    if slots is not None and slots > reach and not beyond:
        raise UsageError(
            f"--max-sequence-length {slots} is beyond the {reach} positions the model was trained for: choose at most "
            f"{reach}, or add --beyond-trained-range"
        )
    if logits not in ("all", "last"):
        raise UsageError(f"--logits {logits!r} is neither `all` nor `last`")
    if headless and logits == "last":
        raise UsageError("--headless has no logits: leave out --logits last")
    chosen = min(DEFAULT_SLOTS, reach) if slots is None else slots
    return GraphOptions(precision, chosen, headless=headless, last_logits_only=logits == "last")


def _export(
    checkpoint: Checkpoint, folder: Path, options: GraphOptions, pt2: bool, progress: Progress, *, quiet: bool
) -> Manifest:
    from blockexport.export.bundle.bundle import file_entries
    from blockexport.export.bundle.manifest import write_manifest
    from blockexport.export.onnx_export import export_onnx
    from blockexport.runtime.text.bundle_tokenizer import check_tokenizer
    from blockexport.runtime.text.chat_turns import write_chat_turns

    def note(line: str) -> None:
        console.say(f"note: {line}", quiet=quiet)

    manifest = export_onnx(checkpoint, folder, options, progress=progress, note=note)
    check_tokenizer(folder, checkpoint.config.vocab_size, note)
    added = write_chat_turns(folder, note)
    if pt2:
        from blockexport.export.pt2 import write_pt2

        added.append(write_pt2(checkpoint, options, folder))
    manifest = replace(manifest, files={**manifest.files, **file_entries(folder, added)})
    # The runtimes that judge the bundle read it as a user's program would: through its manifest.
    write_manifest(folder, manifest)
    return manifest


def _judge(checkpoint: Checkpoint, folder: Path, manifest: Manifest, progress: Progress) -> Judgement | str:
    """What the checks say of the file in `folder`, or why it cannot be judged on this machine."""
    from blockexport.compare.core.backends import require_judgeable, usual_backend
    from blockexport.compare.judge import run_checks
    from blockexport.compare.judged_bundle import bundle_options
    from blockexport.models.errors import NotJudgedError
    from blockexport.runtime.open import open_decoder

    try:
        backend = usual_backend(manifest.precision)
        require_judgeable(backend, manifest.precision)
        return run_checks(
            open_decoder(folder, backend, verify="nothing"), checkpoint, bundle_options(folder, backend), progress
        )
    except NotJudgedError as error:
        return str(error)


def _explained(judgement: Judgement, *, as_json: bool, quiet: bool) -> Report:
    """The whole report. Where it has a difference to explain, the verdict is printed first."""
    if judgement.explain is not None:
        show_verdict(judgement.report, as_json=as_json, quiet=quiet)
    return explained(judgement, as_json=as_json, quiet=quiet)


def _settle(stage: Stage, manifest: Manifest, judged: Report | str | None) -> _Outcome:
    """Seal the bundle, or put it aside where it was judged and found bad."""
    from blockexport.compare.core.check import Verdict
    from blockexport.compare.report.report_files import write_report
    from blockexport.export.bundle.bundle import file_entries
    from blockexport.export.bundle.golden_file import write_golden
    from blockexport.export.bundle.manifest import ONNX_FILE

    if judged is None or isinstance(judged, str):
        stage.seal(manifest)
        return _Outcome(stage.target, manifest, unjudged=judged)
    names = [f"{PARITY}/{name}" for name in write_report(judged, stage.folder / PARITY)]
    if judged.golden is not None:
        names.append(write_golden(stage.folder, judged.golden))
    made_from = {name: manifest.files[name].sha256 for name in (ONNX_FILE, *manifest.files[ONNX_FILE].made_from)}
    manifest = replace(manifest, files={**manifest.files, **file_entries(stage.folder, names, made_from)})
    if judged.verdict is Verdict.FAIL:
        return _Outcome(stage.reject(manifest), manifest, judged)
    stage.seal(manifest)
    return _Outcome(stage.target, manifest, judged)


def _tell(outcome: _Outcome, *, as_json: bool, quiet: bool) -> None:
    from blockexport.compare.core.check import Verdict

    report = outcome.report
    if as_json:
        console.print_json(
            {
                "bundle": str(outcome.folder),
                "manifest": outcome.manifest.to_json(),
                "report": None if report is None else report.to_json(),
                "not_judged": outcome.unjudged,
            }
        )
        return
    if report is not None and not outcome.shown:
        show_verdict(report, quiet=quiet)
    if report is not None and report.verdict is Verdict.FAIL:
        console.say(f"the bundle is bad and was not sealed; it is kept for inspection in {outcome.folder}")
        return
    size = sum(entry.bytes for entry in outcome.manifest.files.values())
    console.say(f"wrote {outcome.folder}: {len(outcome.manifest.files)} files, {size / 1e6:.1f} MB", quiet=quiet)
    if outcome.unjudged is not None:
        console.say(f"not judged: {outcome.unjudged}")
