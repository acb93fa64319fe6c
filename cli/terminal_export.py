"""Exporting on the terminal, for every command that makes a bundle: progress, the verdict, and what came of it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockexport.cli import console
from blockexport.cli.judging import explained, show_verdict, without_explanation
from blockexport.models.exit_codes import ExitCode

if TYPE_CHECKING:
    from blockexport.bundle_export import ExportedBundle
    from blockexport.compare.judge import Judgement
    from blockexport.compare.report.report import Report


def export(
    model: str,
    output: Path,
    *,
    no_explain: bool = False,
    quiet: bool = False,
    as_json: bool = False,
    result_is_json: bool | None = None,
    **options: Any,
) -> ExitCode:
    """Export and judge a bundle; returns the exit code.

    Args:
        model: what the user calls the checkpoint.
        output: the bundle to make.
        no_explain: give the verdict alone.
        quiet: no progress, no notes and no table.
        as_json: nothing but JSON goes to stdout.
        result_is_json: print the result as JSON; `as_json` by default, and False where a command has a document of
            its own to print.
        options: of `blockexport.export_bundle`.
    """
    from blockexport.bundle_export import export_bundle

    shown = False
    with ExitStack() as stack:
        progress = stack.enter_context(console.progress_bar(quiet=quiet))

        def explain(judgement: Judgement) -> Report:
            """Where there is a difference to explain, the verdict is printed first."""
            nonlocal shown
            stack.close()
            if no_explain:
                judgement = without_explanation(judgement)
            shown = judgement.explain is not None
            if shown:
                show_verdict(judgement.report, as_json=as_json, quiet=quiet)
            return explained(judgement, as_json=as_json, quiet=quiet)

        made = export_bundle(
            model,
            output,
            explain=explain,
            progress=progress,
            note=lambda line: console.say(f"note: {line}", quiet=quiet),
            **options,
        )
    if as_json and result_is_json in (None, True):
        _print_json(made)
    else:
        _print(made, shown=shown, as_json=as_json, quiet=quiet)
    if made.report is not None:
        return made.report.exit_code
    return ExitCode.GOOD if made.not_judged is None else ExitCode.NOT_JUDGED


def _print_json(made: ExportedBundle) -> None:
    console.print_json(
        {
            "bundle": str(made.folder),
            "manifest": made.manifest.to_json(),
            "report": None if made.report is None else made.report.to_json(),
            "not_judged": made.not_judged,
        }
    )


def _print(made: ExportedBundle, *, shown: bool, as_json: bool, quiet: bool) -> None:
    from blockexport.compare.core.check import Verdict

    if made.report is not None and not shown:
        show_verdict(made.report, as_json=as_json, quiet=quiet)
    if made.report is not None and made.report.verdict is Verdict.FAIL:
        console.say(f"the bundle is bad and was not sealed; it is kept for inspection in {made.folder}")
        return
    size = sum(entry.bytes for entry in made.manifest.files.values())
    count = len(made.manifest.files) + 1  # the manifest does not list itself
    console.say(f"wrote {made.folder}: {count} files, {size / 1e6:.1f} MB", quiet=quiet)
    if made.not_judged is not None:
        console.say(f"not judged: {made.not_judged}")
