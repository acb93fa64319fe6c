"""`blockexport compare`: a bundle's shipped file, or another tool's ONNX file, against eager PyTorch."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockexport.cli import compare_options, console, options
from blockexport.cli.judging import show
from blockexport.cli.running_code import warn_of_code
from blockexport.models.errors import UsageError
from blockexport.models.exit_codes import ExitCode
from blockexport.runtime.backends import ONNXRUNTIME, backend_named
from blockexport.runtime.compute_device import CPU_NAME
from blockexport.runtime.threads import use_threads

if TYPE_CHECKING:
    from blockexport.compare.judge import Judgement
    from blockexport.compare.report.report import Report


def compare(
    bundle: compare_options.BundlesIfAny = None,
    backend: compare_options.BackendByPrecision = None,
    device: options.Device = CPU_NAME,
    model: options.Source = None,
    lora: compare_options.MergedLora = None,
    onnx: compare_options.OtherFiles = None,
    mapped: compare_options.Mapped = None,
    check: compare_options.Checks = None,
    locate: compare_options.Locate = False,
    no_explain: options.NoExplain = False,
    cost: compare_options.Cost = False,
    max_kl: compare_options.MaxKl = None,
    decode_steps: compare_options.DecodeSteps = None,
    max_sequence_length: options.OtherSlots = None,
    text: compare_options.TextFile = None,
    tokens: compare_options.TokenIds = None,
    report: compare_options.ReportFolder = None,
    max_memory: options.MaxMemory = None,
    trust: options.Trust = False,
    threads: options.Threads = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> ExitCode:
    """Run the file in BUNDLE, prefill, chunks and decode steps over the whole cache, against a float64 reference on the
    source's weights.

    The limit is the noise floor: eager PyTorch's own error in the bundle's precision on the same tokens. Exits 0 when
    every check passes, 1 when one fails, and 3 when the file cannot be judged on this machine or without its source, or
    a check named with --check does not apply to it. A report that cannot be written is 2, with the verdict printed.

    Of a file that fails, the verdict comes first, and then where it first differs and which known mistake would make
    it. That may take another minute; an interrupt then leaves the verdict as printed, and no report.

    With --onnx the file is another tool's: it is called the way that tool's runtime calls it, and judged on the checks
    that its inputs allow.

    Several bundles are the stages of one model (`blockexport onnx --layers`), in their order, and judged together.

    Example: blockexport compare smollm2 --report smollm2-parity
    """
    _check_options(bundle, onnx, mapped, model, lora, backend, text, tokens)
    if onnx and device != CPU_NAME:
        raise UsageError(f"--device runs bundles; another tool's ONNX file runs on {CPU_NAME}")
    if locate:
        _check_locate(backend, no_explain=no_explain)
    from blockexport.compare.checks.catalogue import choose_checks
    from blockexport.compare.judge import JudgeOptions
    from blockexport.compare.judge_foreign import judge_foreign
    from blockexport.compare.judged_chain import compare_chain
    from blockexport.compare.report.report_files import report_place
    from blockexport.export.output.place import inputs_of
    from blockexport.library import compare_bundle

    given = *(bundle or ()), *(onnx or ()), model, lora, text
    folder = None if report is None else report_place(report, inputs_of(*given))
    how: dict[str, Any] = {
        "checks": tuple(check or ()),
        "decode_steps": decode_steps,
        "text": None if text is None else _read(text),
        "token_ids": None if tokens is None else _ids(tokens),
        "locate": locate,
        "cost": cost,
        "max_kl": max_kl,
    }
    choose_checks(how["checks"])  # a misspelt name is said before the model is read
    memory = options.memory_bytes(max_memory)
    if backend is not None:  # the usual ones run graphs
        for one in bundle or ():
            warn_of_code(one, backend, trust=trust)
    use_threads(threads)
    with ExitStack() as stack:
        progress = stack.enter_context(console.progress_bar(quiet=quiet))
        more: dict[str, Any] = {"max_sequence_length": max_sequence_length, "max_memory": memory, "progress": progress}

        def explain(judgement: Judgement) -> Report:
            stack.close()  # the bars go away before the verdict comes
            return _show_and_write(judgement, folder, no_explain=no_explain, as_json=as_json, quiet=quiet)

        source: dict[str, Any] = {"model": model, "lora": lora, "backend": backend, "explain": explain}
        if bundle and len(bundle) > 1:
            if how.pop("cost") or how.pop("max_kl") is not None or device != CPU_NAME:
                raise UsageError("--cost, --max-kl and --device are for a bundle in one piece: leave them out")
            return compare_chain(bundle, **source, **more, **how).exit_code
        if bundle:
            return compare_bundle(bundle[0], device=device, **source, **more, **how).exit_code
        judgement = judge_foreign(onnx or (), model or "", JudgeOptions(**how), mapped=mapped or (), **more)
        return explain(judgement).exit_code


TEXT_BYTES = 1 << 24  # of --text: the longest caches have a million slots, and few tokens are longer than 16 bytes


def _check_options(
    bundle: list[Path] | None,
    onnx: list[Path] | None,
    mapped: list[str] | None,
    model: str | None,
    lora: str | None,
    backend: str | None,
    text: Path | None,
    tokens: str | None,
) -> None:
    if text is not None and tokens is not None:
        raise UsageError("--text and --tokens contradict each other: judge on one of them")
    if not onnx:
        if mapped:
            raise UsageError("--map says what another tool's file calls its inputs: it goes with --onnx FILE")
        if not bundle:
            raise UsageError(
                "there is nothing to judge: name a BUNDLE, or another tool's file with --onnx FILE --model CHECKPOINT"
            )
        return
    if bundle:
        raise UsageError(f"--onnx {onnx[0]} and the bundle {bundle[0]} are two artifacts: judge them one at a time")
    if model is None:
        raise UsageError(f"--onnx {onnx[0]} needs --model CHECKPOINT: the file does not say what it was exported from")
    if lora is not None:
        raise UsageError(
            f"--lora {lora} is about bundles: another tool's file was made of a model that had it merged, so save that "
            "one (peft: merge_and_unload(), then save_pretrained(new_folder)) and name it with --model"
        )
    if backend not in (None, ONNXRUNTIME.name):
        raise UsageError(f"--backend {backend} runs bundles; another tool's ONNX file runs on {ONNXRUNTIME.name}")


def _check_locate(backend: str | None, *, no_explain: bool) -> None:
    if no_explain:
        raise UsageError("--locate and --no-explain contradict each other: choose one of them")
    if backend is not None and backend_named(backend).graph is None:
        raise UsageError(f"--locate looks into an ONNX graph, and {backend} runs none: leave one of the two away")


def _read(path: Path) -> str:
    """The text, of a long one as much as any judgement uses."""
    from blockexport.models.regular_file import read_beginning

    try:
        return read_beginning(path, TEXT_BYTES)
    except UnicodeDecodeError as error:
        raise UsageError(f"--text {path} is not UTF-8 ({error}): convert it first") from error


def _ids(tokens: str) -> list[int]:
    try:
        return [int(part) for part in tokens.split(",")]
    except ValueError as error:
        raise UsageError(f"--tokens {tokens!r} is not a list of numbers: write them as 1,2,3") from error


def _show_and_write(
    judgement: Judgement, folder: Path | None, *, no_explain: bool, as_json: bool, quiet: bool
) -> Report:
    """Show a judgement, and only then write its report, which is written even where nothing can be printed."""
    from blockexport.compare.report.report_files import write_report

    try:
        report = show(judgement, no_explain=no_explain, as_json=as_json, quiet=quiet)
    except (OSError, SystemExit):  # Rich answers a reader that left with SystemExit
        if folder is not None:
            write_report(judgement.report if no_explain else judgement.explained(), folder)
        raise
    try:
        if as_json:
            console.print_json(report.to_json())
    finally:
        if folder is not None:
            write_report(report, folder)
    return report
