"""`report.html`: the whole report as one file that needs nothing else.

The page is in `templates/`: its text in Jinja templates, which escape what they are given, its looks in `style.css`. No
script, no font and no picture is loaded, and the page's own policy forbids it. The same report gives the same bytes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jinja2

from blockexport.compare.core.tolerances import TABLE
from blockexport.compare.explain.sites import LABELS
from blockexport.compare.report.layer_plots import inside
from blockexport.compare.report.position_plot import position_plot
from blockexport.compare.report.report import SCHEMA_VERSION, Report
from blockexport.compare.report.report_text import capital, figure, full_stop, plural, ratio
from blockexport.compare.report.report_values import facts, key_figures, share_of, token_table, verdict_kind

TEMPLATES = Path(__file__).resolve().parent / "templates"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def to_html(report: Report) -> str:
    """The page for a report."""
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(
            report=report,
            schema_version=SCHEMA_VERSION,
            policy=POLICY,
            style=(TEMPLATES / "style.css").read_text(encoding="utf-8"),
            key_figures=key_figures(report),
            position_plot=position_plot(report),
            inside=inside(report.explanation.search) if report.explanation else None,
            labels=LABELS,
            tokens=token_table(report),
            facts=facts(report),
            limits=TABLE.values(),
        )
    )


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "capital": capital,
        "figure": figure,
        "full_stop": full_stop,
        "kind": verdict_kind,
        "plural": plural,
        "ratio": ratio,
        "share_of": share_of,
    }
    return environment
