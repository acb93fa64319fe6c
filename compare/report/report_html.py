"""`report.html`: the whole report as one file that needs nothing else."""

from __future__ import annotations

from blockexport.compare.core.tolerances import TABLE
from blockexport.compare.explain.sites import LABELS
from blockexport.compare.report.error_map import error_map
from blockexport.compare.report.html_page import render_page
from blockexport.compare.report.layer_plots import inside
from blockexport.compare.report.position_plot import position_plot
from blockexport.compare.report.report import SCHEMA_VERSION, Report
from blockexport.compare.report.report_text import (
    COST_HEADINGS,
    KIND_HEADINGS,
    cost_caption,
    cost_rows,
    kind_caption,
    kind_rows,
)
from blockexport.compare.report.report_values import facts, key_figures, share_of, token_table, verdict_kind


def to_html(report: Report) -> str:
    """The page for a report."""
    cost = report.quantising_cost
    return render_page(
        "report.html.jinja",
        {"kind": verdict_kind, "share_of": share_of},
        report=report,
        schema_version=SCHEMA_VERSION,
        key_figures=key_figures(report),
        position_plot=position_plot(report),
        inside=inside(report.explanation.search) if report.explanation else None,
        labels=LABELS,
        tokens=token_table(report),
        facts=facts(report),
        limits=TABLE.values(),
        cost=None if cost is None else (COST_HEADINGS, cost_rows(cost), cost_caption(cost)),
        kinds=None if cost is None else (KIND_HEADINGS, kind_rows(cost), kind_caption(cost)),
        errors=None if cost is None else error_map(cost.kinds),
    )
