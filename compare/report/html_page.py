"""Pages that are one file and need nothing else: the parity report, and the figures of `blockexport bench`.

A page's text is a Jinja template in `templates/`, which extends `page.html.jinja` and escapes what it is given; its
looks are `style.css`. No script, no font and no picture is loaded, and the page's own policy forbids it. The same
values give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from blockexport.compare.report.report_text import capital, figure, full_stop, plural, ratio

TEMPLATES = Path(__file__).resolve().parent / "templates"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def render_page(template: str, filters: Mapping[str, Callable[..., Any]], **values: Any) -> str:
    """The page that a template makes of `values`, with `filters` of its own beside those for numbers and sentences."""
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    return _environment(tuple(filters.items())).get_template(template).render(policy=POLICY, style=style, **values)


@cache
def _environment(filters: tuple[tuple[str, Callable[..., Any]], ...]) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    numbers = {"capital": capital, "figure": figure, "full_stop": full_stop, "plural": plural, "ratio": ratio}
    environment.filters |= {**numbers, **dict(filters)}
    return environment
