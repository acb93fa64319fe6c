"""`report.md`: the verdict first, then the table, then what each check has to say."""

from __future__ import annotations

from blockexport.compare.core.quantising_cost import QuantisingCost
from blockexport.compare.core.tolerances import TABLE
from blockexport.compare.report.report import Report
from blockexport.compare.report.report_text import (
    COST_HEADINGS,
    HEADINGS,
    capital,
    cost_caption,
    cost_rows,
    footnotes,
    full_stop,
    table_rows,
)
from blockexport.compare.report.report_values import facts


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
    return "\n".join([*lines, ""])


def _cost(cost: QuantisingCost | None) -> list[str]:
    if cost is None:
        return []
    rows = [COST_HEADINGS, ("---",) * len(COST_HEADINGS), *cost_rows(cost)]
    return ["", "## What quantising costs", "", cost_caption(cost), "", *(f"| {' | '.join(row)} |" for row in rows)]


def _explanation(report: Report) -> list[str]:
    if report.explanation is None:
        return []
    said = [f"- {full_stop(capital(sentence))}" for sentence in report.explanation.sentences]
    return ["## First difference and likely cause", "", *said, "", "## Checks", ""]
