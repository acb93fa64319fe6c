"""A judgement on the terminal: the verdict at once, then what is found out about a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from blockexport.cli import console
from blockexport.models.exit_codes import ExitCode

if TYPE_CHECKING:
    from blockexport.compare.judge import Judgement
    from blockexport.compare.report.report import Report


def use_threads(threads: int | None) -> None:
    """Let this process compute with so many threads: see `runtime/threads.py`."""
    from blockexport.runtime.threads import use_threads as use

    use(threads)


def show_verdict(report: Report, *, as_json: bool = False, quiet: bool = False) -> None:
    """Print what the checks came to: the table, or with `quiet` the verdict alone; on stderr where stdout is JSON's."""
    from blockexport.compare.report.report_table import render_table, render_verdict

    if as_json:
        console.say(f"{str(report.verdict).upper()}: {report.summary}", quiet=quiet)
    else:
        console.stdout_console().print(render_verdict(report) if quiet else render_table(report))


def without_explanation(judgement: Judgement) -> Judgement:
    """The verdict alone."""
    return replace(judgement, explain=None)


def _doing(report: Report) -> str:
    """What is about to be done, which may take a while."""
    if report.exit_code is not ExitCode.BAD:
        return "looking inside the graph, value by value"
    return "looking for the place and the cause of the difference (--no-explain leaves this out)"


def explained(judgement: Judgement, *, as_json: bool = False, quiet: bool = False) -> Report:
    """Explain a judgement whose verdict has been shown, and print the explanation (not where stdout is JSON's).

    An interrupt leaves the verdict as it stands, and goes on up.
    """
    if judgement.explain is None:
        return judgement.report
    console.say(_doing(judgement.report), quiet=quiet)
    try:
        with console.progress_bar(quiet=quiet) as progress:
            report = judgement.explained(progress)
    except KeyboardInterrupt:
        verdict = str(judgement.report.verdict).upper()
        console.say(f"the explanation was interrupted; the verdict stands: {verdict}. No report was written")
        raise
    if report.explanation is not None and not as_json:
        from blockexport.compare.report.report_table import render_explanation

        before = () if quiet else ("",)
        console.stdout_console().print(*before, render_explanation(report.explanation), sep="\n")
    return report
