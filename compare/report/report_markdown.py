"""`report.md`: the verdict first, then the table, then what each check has to say."""

from __future__ import annotations

from collections.abc import Sequence

from blockexport.compare.core.quantising_cost import QuantisingCost
from blockexport.compare.core.tolerances import TABLE
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
from blockexport.compare.report.report_values import facts
from blockexport.models.wording import one_line


def to_markdown(report: Report) -> str:
    """The report as a page of Markdown."""
    lines = [
        f"# {str(report.verdict).capitalize()}",
        "",
        f"{report.summary}.",
        "",
        *_explanation(report),
        *(line for note in report.notes for line in (f"Note: {note}.", "")),
        *(f"- {name}: {fact}" for name, fact in facts(report)),
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"|{'---|' * len(HEADINGS)}",
        *(f"| {' | '.join(row)} |" for row in table_rows(report)),
        "",
        *footnotes(report),
        "",
        *(f"- **{r.name}** ({r.verdict}): {r.message}." for r in report.checks),
        *(f"- {name}: does not apply; {reason}." for name, reason in report.skipped),
    ]
    lines += _cost(report.quantising_cost)
    lines += ["", "## Limits", "", "What each rests on is in `report.json`, under `tolerances`.", ""]
    lines += ["| limit | value | of what |", "|---|---|---|"]
    lines += [f"| {limit.title} | {limit.value:.3g} | {limit.line} |" for limit in TABLE.values()]
    # Names in a stranger's file may hold HTML and line breaks; none of the lines above has any of its own.
    return "\n".join([*(one_line(line).replace("<", "&lt;") for line in lines), ""])


def _cost(cost: QuantisingCost | None) -> list[str]:
    if cost is None:
        return []
    return [
        *("", "## What quantising costs", "", cost_caption(cost), "", *_rows(COST_HEADINGS, cost_rows(cost))),
        *("", "### By which matrices", "", kind_caption(cost), "", *_rows(KIND_HEADINGS, kind_rows(cost))),
    ]


def _rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table."""
    return [f"| {' | '.join(row)} |" for row in (headings, ("---",) * len(headings), *rows)]


def _explanation(report: Report) -> list[str]:
    if report.explanation is None:
        return []
    said = [f"- {full_stop(capital(sentence))}" for sentence in report.explanation.sentences]
    return ["## First difference and likely cause", "", *said, "", "## Checks", ""]
