"""`report.html`: the whole report as one file that needs nothing else, drawn from what `report.json` holds.

The page is in `templates/`: its text in Jinja templates, which escape what they are given, its looks in `style.css`. No
script, no font and no picture is loaded, and the page's own policy forbids it. The same report gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from blockexport.compare.report.layer_plots import inside
from blockexport.compare.report.position_plot import position_plot
from blockexport.compare.report.report_limits import title_of_limit
from blockexport.compare.report.report_text import capital, figure, full_stop, plural, ratio, real
from blockexport.compare.report.report_values import facts, key_figures, share_of, token_table, verdict_kind

TEMPLATES = Path(__file__).resolve().parent / "templates"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def to_html(data: Mapping[str, Any]) -> str:
    """The page for a report.

    Args:
        data: the values of `report.json`, as `Report.to_json` gives them.
    """
    explanation = data.get("explanation")
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(
            report={"explanation": None, **data},
            policy=POLICY,
            style=(TEMPLATES / "style.css").read_text(encoding="utf-8"),
            key_figures=key_figures(data),
            position_plot=position_plot(data),
            inside=inside(explanation, data) if explanation else None,
            tokens=token_table(data),
            facts=facts(data),
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
        "limit_title": title_of_limit,
        "plural": plural,
        "ratio": ratio,
        "real": real,
        "share_of": share_of,
    }
    return environment
