"""The report on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from blockexport.compare.core.check import Verdict
from blockexport.compare.report.report import Report
from blockexport.compare.report.report_rows import HEADINGS, footnotes, full_sentence, table_rows

_STYLES = {str(Verdict.PASS): "green", str(Verdict.FAIL): "bold red", str(Verdict.NOT_JUDGED): "yellow", "": "dim"}


def render_table(report: Report) -> RenderableType:
    """The verdict, of a failure its place and cause, the table, and below it what is not plainly good."""
    verdict = str(report.verdict)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if i < 2 else "right", no_wrap=True)
    for row in table_rows(report):
        table.add_row(row.cells[0], Text(row.cells[1], style=_STYLES[row.verdict]), *row.cells[2:])
    parts: list[RenderableType] = [Text(f"{verdict.upper()}: {report.summary}", style=_STYLES[verdict])]
    if report.explanation is not None:
        parts += [Text(full_sentence(said), style="bold") for said in report.explanation.sentences]
    parts += [Text(f"Note: {note}.", style="yellow") for note in report.notes]
    parts += [Text(""), table, *(Text(note, style="dim") for note in footnotes(report))]
    troubles = [Text(f"{r.name}: {r.message}") for r in report.checks if r.verdict is not Verdict.PASS]
    parts += [Text(""), *troubles] if troubles else []
    parts += [Text(f"{name}: does not apply; {reason}", style="dim") for name, reason in report.skipped]
    if not report.artifact["arithmetic"]["is_target"]:
        parts.append(Text(report.artifact["arithmetic"]["note"], style="dim"))
    return Group(*parts)
