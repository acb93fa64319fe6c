"""The figures of `blockexport bench` as a page of one file, in the looks of the parity report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockexport.cli import bench_view as view

if TYPE_CHECKING:
    from blockexport.runtime.bench.bench_result import BenchResult, PhaseFigures

MARK = "<!-- a page of blockexport bench -->\n"
WIDTH = 1000  # of a bar's drawing, stretched to its box


@dataclass(frozen=True)
class Bar:
    """One side of a case: the median as a bar, the extent of the samples as a line, what the roofline allows as a
    mark; `None` where that is not known."""

    name: str
    words: str
    detail: str
    end: float
    low: float
    high: float
    allowed: float | None


@dataclass(frozen=True)
class BarChart:
    """The bars of one case, from 0 to the same right end."""

    title: str
    bars: list[Bar]


def to_page(result: BenchResult) -> str:
    """The page's text."""
    from importlib.metadata import version

    from blockexport.compare.report.html_page import render_page

    return render_page(
        "bench.html.jinja",
        {},
        result=result,
        headlines=list(view.headlines(result)),
        footnotes=list(view.footnotes(result)),
        key_figures=_key_figures(result),
        phases=[(phase.title, _charts(result, phase), list(view.phase_rows(result, phase))) for phase in view.PHASES],
        headings=view.HEADINGS,
        side_headings=view.SIDE_HEADINGS,
        side_rows=list(view.side_rows(result)),
        version=version("blockexport"),
    )


def _key_figures(result: BenchResult) -> list[tuple[str, str]]:
    """Of the first side: what it does in its first case."""
    first = result.sides[0]
    figures = first.cases[0]
    shown = [
        (view.milliseconds(figures.decode.seconds.median), f"a step, after {figures.case.context:,} tokens"),
        (view.milliseconds(figures.prefill.seconds.median), "to the first token"),
        (view.milliseconds(first.load_seconds.median), "to load"),
    ]
    if figures.decode.share is not None:
        shown.append((view.percent(figures.decode.share), "of the decode speed that this machine allows"))
    return shown


def _charts(result: BenchResult, phase: view.Phase) -> list[BarChart]:
    """Tokens per second of every side, a chart for each case."""
    charts = []
    for i, (batch_size, context) in enumerate(result.plan.cases):
        sides = [(f"[{n}] {side.side.name}", phase.of(side.cases[i])) for n, side in enumerate(result.sides, start=1)]
        right = max(max(_fastest(figures), _allowed(figures) or 0) for _, figures in sides)
        bars = [_bar(name, figures, WIDTH / right) for name, figures in sides]
        rows = f", {batch_size} rows" if batch_size > 1 else ""
        charts.append(BarChart(f"{context:,} tokens{rows}", bars))
    return charts


def _fastest(figures: PhaseFigures) -> float:
    return figures.tokens / figures.seconds.lowest


def _allowed(figures: PhaseFigures) -> float | None:
    """Tokens per second of the roofline."""
    return figures.tokens_per_second / figures.share if figures.share else None


def _bar(name: str, figures: PhaseFigures, scale: float) -> Bar:
    allowed = _allowed(figures)
    detail = f"{view.milliseconds(figures.seconds.median)} ({view.extent(figures.seconds)})"
    if figures.share is not None:
        detail += f", {view.percent(figures.share)} of roofline"
    return Bar(
        name,
        f"{view.rate(figures.tokens_per_second)} tokens/s",
        detail,
        figures.tokens_per_second * scale,
        figures.tokens / figures.seconds.highest * scale,
        _fastest(figures) * scale,
        None if allowed is None else allowed * scale,
    )
