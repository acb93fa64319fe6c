"""Exporting on the terminal, for every command that makes a bundle: progress, the verdict, and what came of it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockexport.cli import console
from blockexport.cli.judging import show
from blockexport.models.exit_codes import ExitCode
from blockexport.models.wording import size

if TYPE_CHECKING:
    from blockexport.bundle_export import ExportedBundle
    from blockexport.compare.judge import Judgement
    from blockexport.compare.report.report import Report


def export(
    model: str, output: Path, *, no_explain: bool = False, quiet: bool = False, as_json: bool = False, **options: Any
) -> ExportedBundle:
    """Export and judge a bundle, show the verdict, and say where the bundle is and what it is worth.

    Args:
        model: what the user calls the checkpoint.
        output: the bundle to make.
        no_explain: give the verdict alone.
        quiet: no progress, no notes and no table.
        as_json: nothing goes to stdout, which is for the caller's document.
        options: of `blockexport.export_bundle`.
    """
    from blockexport.bundle_export import export_bundle

    with ExitStack() as stack:
        progress = stack.enter_context(console.progress_bar(quiet=quiet))

        def explain(judgement: Judgement) -> Report:
            stack.close()  # the bars go away before the verdict comes
            return show(judgement, no_explain=no_explain, as_json=as_json, quiet=quiet)

        made = export_bundle(
            model,
            output,
            explain=explain,
            progress=progress,
            note=lambda line: console.say(f"note: {line}", quiet=quiet),
            **options,
        )
    _say_what_was_made(made, quiet=quiet or as_json)
    return made


def _say_what_was_made(made: ExportedBundle, *, quiet: bool) -> None:
    if made.exit_code is ExitCode.BAD:
        console.say(f"the bundle is bad and was not sealed; it is kept for inspection in {made.folder}")
        return
    total = size(sum(entry.bytes for entry in made.manifest.files.values()))
    count = len(made.manifest.files) + 1  # the manifest does not list itself
    console.say(f"wrote {made.folder}: {count} files, {total}", quiet=quiet)
    if made.not_judged is not None:
        console.say(f"not judged: {made.not_judged}")
