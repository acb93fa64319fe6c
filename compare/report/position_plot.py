"""The plot of report.html over positions: largest error against the noise floor and the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from blockexport.compare.core.tolerances import MAX_FACTOR
from blockexport.compare.report.log_scale import SIZE, Hover, LogScale, area, dots, line, log_scale
from blockexport.compare.report.report import Report
from blockexport.compare.report.report_text import figure, plural, ratio, span

FACTOR = MAX_FACTOR.value


@dataclass(frozen=True)
class Panel:
    """One stretch of positions: path data by CSS class, in the order in which they are drawn."""

    name: str
    span: str
    grow: str
    label: str
    paths: list[tuple[str, str]]
    hovers: list[Hover]


@dataclass(frozen=True)
class PositionPlot:
    """What the template draws. A legend's entries are a kind of mark and its words."""

    legend: list[tuple[str, str]]
    scale: LogScale
    panels: list[Panel]


class _Point(NamedTuple):
    """What the report has of a position."""

    position: int
    error: float
    floor: float
    rms: float
    rms_floor: float
    kl: float
    tied: bool
    disagrees: bool

    @property
    def outside(self) -> bool:
        """Whether the error is too large; where eager itself overflows nothing finite can be said to be."""
        return not math.isfinite(self.error) or self.error > FACTOR * self.floor

    @property
    def title(self) -> str:
        """What is shown to the mouse."""
        times = f" ({ratio(self.error / self.floor)} times)" if self.floor and math.isfinite(self.floor) else ""
        return (
            f"position {self.position}\n"
            f"largest error {figure(self.error)}, floor {figure(self.floor)}{times}\n"
            f"rms {figure(self.rms)}, floor {figure(self.rms_floor)}\n"
            f"KL {figure(self.kl)} nats"
        )


def position_plot(report: Report) -> PositionPlot | None:
    """Largest error at each position against the noise floor and the limit; None where nothing was walked."""
    points = _points(report)
    if not points:
        return None
    scale = log_scale(value for p in points for value in (p.error, p.floor, FACTOR * p.floor))
    legend = [
        ("error", "the artifact"),
        ("floor", "noise floor, eager’s own error"),
        ("limit", f"limit, {FACTOR:g} times the floor"),
    ]
    at_top = "" if all(math.isfinite(p.error) for p in points) else " (at the top: NaN or infinity)"
    if any(p.outside or p.disagrees for p in points):
        legend.append(("mark", f"outside the limit{at_top}, or another top-1 token"))
    if any(p.tied for p in points):
        legend.append(("tie", "top-1 tied"))
    stretches = [(name, [p for p in points if p.position in bound]) for name, bound in _stretches(report)]
    return PositionPlot(legend, scale, [_panel(name, inside, scale) for name, inside in stretches if inside])


def _points(report: Report) -> list[_Point]:
    columns = report.positions
    if columns is None:
        return []
    along = [result.stretch for result in report.checks if result.check.along and result.stretch]
    ties, wrong = {p for s in along for p in s.ties}, {p for s in along for p in s.disagreements}
    tied, disagrees = [p in ties for p in columns.position], [p in wrong for p in columns.position]
    distances = (columns.max, columns.max_floor, columns.rms, columns.rms_floor, columns.kl)
    return [_Point(*row) for row in zip(columns.position, *distances, tied, disagrees, strict=True)]


def _stretches(report: Report) -> list[tuple[str, range]]:
    """Prefill, decode and last slots; in a small cache the decode steps reach into the last slots."""
    tokens, slots = report.tokens, report.artifact.max_sequence_length
    decode_to = tokens.prefill + tokens.decode
    to_the_end = tokens.last and decode_to == slots
    return [
        ("prefill", range(tokens.prefill)),
        ("decode to the last slot" if to_the_end else "decode", range(tokens.prefill, decode_to)),
        ("last slots", range(decode_to, slots)),
    ]


def _panel(name: str, points: Sequence[_Point], scale: LogScale) -> Panel:
    count = len(points)
    xs = [SIZE * (i + 0.5) / count for i in range(count)]

    def along(values: Sequence[float]) -> list[tuple[float, float]]:
        return [(x, scale.y(v) if math.isfinite(v) else math.nan) for x, v in zip(xs, values, strict=True)]

    errors = along([p.error for p in points])
    places = [(x, 0.0 if math.isnan(y) else y) for x, y in errors]  # what is not finite is marked at the top
    bad = [place for place, p in zip(places, points, strict=True) if p.outside or p.disagrees]
    tied = [place for place, p in zip(places, points, strict=True) if p.tied]
    paths = [
        ("grid", scale.grid),
        ("floor", area(along([p.floor for p in points]))),
        ("limit", line(along([p.floor * FACTOR for p in points]))),
        ("error", line(errors) if count > 1 else dots(places)),
    ]
    paths += [("dot bad", dots(bad))] if bad else []
    paths += [("ring", dots(tied)), ("hole", dots(tied))] if tied else []
    return Panel(
        name,
        span(points[0].position, points[-1].position),
        f"{math.sqrt(count):.2f}",
        _words(name, points),
        paths,
        [Hover(SIZE * i / count, SIZE / count, point.title) for i, point in enumerate(points)],
    )


def _words(name: str, points: Sequence[_Point]) -> str:
    finite = [p.error for p in points if math.isfinite(p.error)]
    outside = sum(p.outside for p in points)
    extent = f"from {figure(min(finite))} to {figure(max(finite))}" if finite else "nowhere finite"
    return (
        f"{name}, positions {points[0].position} to {points[-1].position}: largest error {extent}; "
        f"{plural(outside, 'position') if outside else 'no position'} outside the limit"
    )
