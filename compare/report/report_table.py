"""The report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from blockexport.compare.core.check import Verdict
from blockexport.compare.core.quantising_cost import QuantisingCost
from blockexport.compare.report.report import Report
from blockexport.compare.report.report_text import (
    COST_HEADINGS,
    HEADINGS,
    KIND_HEADINGS,
    capital,
    cost_caption,
    cost_rows,
    footnotes,
    full_stop,
    kind_caption,
    kind_rows,
    table_rows,
)

if TYPE_CHECKING:
    from blockexport.compare.explain.explanation import Explanation

_STYLES = {str(Verdict.PASS): "green", str(Verdict.FAIL): "bold red", str(Verdict.NOT_JUDGED): "yellow", "": "dim"}


def render_verdict(report: Report) -> RenderableType:
    """The verdict in a sentence, and the notes beside it."""
    verdict = str(report.verdict)
    notes = (Text(f"Note: {note}.", style="yellow") for note in report.notes)
    return Group(Text(f"{verdict.upper()}: {report.summary}", style=_STYLES[verdict]), *notes)


def render_explanation(explanation: Explanation) -> RenderableType:
    """Place and cause, a line each."""
    return Group(*(Text(full_stop(capital(said)), style="bold") for said in explanation.sentences))


def render_table(report: Report) -> RenderableType:
    """The verdict, the table, and below it what is not plainly good."""
    table = _table(HEADINGS, words=2)
    for row in table_rows(report):
        name, verdict, *figures = row
        table.add_row(name, Text(verdict, style=_STYLES[verdict]), *figures)
    parts: list[RenderableType] = [render_verdict(report)]
    parts += [Text(""), table, *(Text(note, style="dim") for note in footnotes(report))]
    if report.quantising_cost is not None:
        parts += _cost(report.quantising_cost)
    troubles = [Text(f"{r.name}: {r.message}") for r in report.checks if r.verdict is not Verdict.PASS]
    parts += [Text(""), *troubles] if troubles else []
    parts += [Text(f"{name}: does not apply; {reason}", style="dim") for name, reason in report.skipped]
    if not report.artifact.arithmetic.is_target:
        parts.append(Text(report.artifact.arithmetic.note, style="dim"))
    return Group(*parts)


def _cost(cost: QuantisingCost) -> list[RenderableType]:
    """What quantising costs, and by which matrices."""
    parts: list[RenderableType] = []
    for headings, rows, caption in (
        (COST_HEADINGS, cost_rows(cost), cost_caption(cost)),
        (KIND_HEADINGS, kind_rows(cost), kind_caption(cost)),
    ):
        table = _table(headings, words=1)
        for row in rows:
            table.add_row(*row)
        parts += [Text(""), table, Text(caption, style="dim")]
    return parts


def _table(headings: Sequence[str], words: int) -> Table:
    """Empty; the first columns hold words and the others numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i < words else "right", no_wrap=True)
    return table
