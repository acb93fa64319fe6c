"""A judgement on the terminal: the verdict at once, then what is found out about a difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockexport.cli import console
from blockexport.models.exit_codes import ExitCode

if TYPE_CHECKING:
    from blockexport.compare.judge import Judgement
    from blockexport.compare.report.report import Report


def show(judgement: Judgement, *, no_explain: bool = False, as_json: bool = False, quiet: bool = False) -> Report:
    """Print what the checks came to, the table or with `quiet` the verdict alone; then explain a difference and print
    the explanation, unless `no_explain` says otherwise.

    Where stdout is JSON's, the verdict of what is explained goes to stderr, and nothing else is printed. An interrupt
    leaves the verdict as it stands, and goes on up.
    """
    report, explains = judgement.report, judgement.explain is not None and not no_explain
    if not as_json:
        from blockexport.compare.report.report_table import render_explanation, render_table, render_verdict

        console.stdout_console().print(render_verdict(report) if quiet else render_table(report))
    elif explains:
        console.say(f"{str(report.verdict).upper()}: {report.summary}", quiet=quiet)
    if not explains:
        return report
    doing = "looking inside the graph, value by value"
    if report.exit_code is ExitCode.BAD:
        doing = "looking for the place and the cause of the difference (--no-explain leaves this out)"
    console.say(doing, quiet=quiet)
    try:
        with console.progress_bar(quiet=quiet) as progress:
            report = judgement.explained(progress)
    except KeyboardInterrupt:
        verdict = str(report.verdict).upper()
        console.say(f"the explanation was interrupted; the verdict stands: {verdict}. No report was written")
        raise
    if report.explanation is not None and not as_json:
        before = () if quiet else ("",)
        console.stdout_console().print(*before, render_explanation(report.explanation), sep="\n")
    return report
