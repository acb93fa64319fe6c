"""The plots of report.html: inline SVG that stretches with the page, with its text in HTML so that it does not.

An SVG has a square of 1000 by 1000 units pulled to the size of its box; strokes keep their width, and a dot is a line
of no length with round ends, so it stays round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blockexport.compare.report.report_html_text import escape, figure, plural, power, ratio, real, span

SIZE = 1000
DECADES = 14  # shown at most, the largest ones
STEPS = (0.0, math.log10(2), math.log10(5), 1.0)  # where a scale may end within a decade


@dataclass(frozen=True)
class LogScale:
    """Logarithms to base 10 at the bottom and at the top."""

    low: float
    high: float

    def y(self, value: float) -> float:
        """From the top; values beyond an end lie on it."""
        if value <= 0:
            return SIZE
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return SIZE * (1 - min(max(share, 0.0), 1.0))

    @property
    def ticks(self) -> list[int]:
        """The powers of ten that get a line: all, or every other one of many."""
        step = 1 if self.high - self.low <= 6 else 2
        return list(range(math.floor(self.high), math.ceil(self.low) - 1, -step))

    def grid(self) -> str:
        """Lines of a plot."""
        lines = "".join(f"M0 {self.y(10.0**tick):.0f}H{SIZE}" for tick in self.ticks)
        return f'<path class="grid" d="{lines}"/>'

    def axis(self) -> str:
        """The labels beside a plot."""
        labels = (f'<span style="top:{self.y(10.0**t) / SIZE:.2%}">{power(t)}</span>' for t in self.ticks)
        return f'<div class="axis" aria-hidden="true">{"".join(labels)}</div>'


def log_scale(values: Iterable[float]) -> LogScale:
    """A scale on which all finite positive values have a place, from a 1, 2 or 5 of a power of ten to another."""
    shown = [math.log10(value) for value in values if math.isfinite(value) and value > 0] or [0.0]
    top, bottom = max(shown), max(min(shown), max(shown) - DECADES)
    high = math.floor(top) + next(step for step in STEPS if math.floor(top) + step >= top)
    low = math.floor(bottom) + next(step for step in reversed(STEPS) if math.floor(bottom) + step <= bottom)
    return LogScale(min(low, high - 1), high)


def line(points: Sequence[tuple[float, float]]) -> str:
    """Path data through points; where y is NaN it breaks off."""
    parts: list[str] = []
    pen_down = False
    for x, y in points:
        if math.isnan(y):
            pen_down = False
            continue
        parts.append(f"{'L' if pen_down else 'M'}{x:.0f} {y:.0f}")
        pen_down = True
    return "".join(parts)


def dots(points: Iterable[tuple[float, float]]) -> str:
    """Path data of a dot at each point."""
    return "".join(f"M{x:.0f} {y:.0f}h0" for x, y in points)


def area(points: Sequence[tuple[float, float]]) -> str:
    """Path data of what lies under a line; it reaches to the edges of the plot."""
    finite = [(x, y) for x, y in points if not math.isnan(y)]
    if not finite:
        return ""
    edge = [(0.0, finite[0][1]), *finite, (float(SIZE), finite[-1][1])]
    return f"M0 {SIZE}" + "".join(f"L{x:.0f} {y:.0f}" for x, y in edge) + f"V{SIZE}Z"


def svg(content: str, label: str) -> str:
    """A plot; `label` says in words what it shows."""
    return (
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f"{content}</svg>"
    )


def swatch(kind: str, words: str) -> str:
    """An entry of a legend: a piece of what it explains."""
    drawn = {
        "floor": '<path class="floor" d="M0 10H28V2H0Z"/>',
        "mark": '<path class="dot bad" d="M14 6h0"/>',
        "tie": '<path class="ring" d="M14 6h0"/><path class="hole" d="M14 6h0"/>',
    }.get(kind, f'<path class="{kind}" d="M0 6H28"/>')
    return f'<li><svg viewBox="0 0 28 12" aria-hidden="true">{drawn}</svg>{escape(words)}</li>'


@dataclass(frozen=True)
class _Stretch:
    """The judged positions of one stretch; rows are indices into the parallel lists of the report."""

    name: str
    rows: list[int]


def position_chart(data: Mapping[str, Any]) -> str:
    """Largest error at each position against the noise floor and the limit; empty where nothing was walked."""
    columns = data["positions"]
    if not columns:
        return ""
    factor = real(data["tolerances"]["max_factor"]["value"])
    errors, floors = [real(v) for v in columns["max"]], [real(v) for v in columns["max_floor"]]
    scale = log_scale([*errors, *floors, *(factor * value for value in floors)])
    ties, disagreements = _marked(data, "ties"), _marked(data, "disagreements")
    panels = "".join(
        _panel(stretch, columns, scale, factor, (ties, disagreements)) for stretch in _stretches(data) if stretch.rows
    )
    legend = [
        swatch("error", "the artifact"),
        swatch("floor", "noise floor, eager’s own error"),
        swatch("limit", f"limit, {factor:g} times the floor"),
    ]
    outside = any(_outside(error, floor, factor) for error, floor in zip(errors, floors, strict=True))
    at_top = "" if all(map(math.isfinite, errors)) else " (at the top: NaN or infinity)"
    legend += [swatch("mark", f"outside the limit{at_top}, or another top-1 token")] if outside or disagreements else []
    legend += [swatch("tie", "top-1 tied")] if ties & set(columns["position"]) else []
    return (
        f'<figure class="chart"><ul class="legend">{"".join(legend)}</ul>'
        f'<div class="plot">{scale.axis()}<div class="panels">{panels}</div></div></figure>'
    )


def _stretches(data: Mapping[str, Any]) -> list[_Stretch]:
    """Prefill, decode and last slots; in a small cache the decode steps reach into the last slots."""
    tokens, positions = data["tokens"], data["positions"]["position"]
    decode_from, decode_to = tokens["prefill"], tokens["prefill"] + tokens["decode"]
    to_the_end = tokens["last"] and decode_to == data["artifact"]["max_sequence_length"]
    bounds = [
        ("prefill", range(decode_from)),
        ("decode to the last slot" if to_the_end else "decode", range(decode_from, decode_to)),
        ("last slots", range(decode_to, data["artifact"]["max_sequence_length"])),
    ]
    return [_Stretch(name, [i for i, p in enumerate(positions) if p in bound]) for name, bound in bounds]


def _marked(data: Mapping[str, Any], key: str) -> set[int]:
    """Positions that a check along the judged sequence lists under `key`; other checks count along their own rows."""
    along = ("prefill", "decode", "last-slot")
    return {p for check in data["checks"] if check["name"] in along for p in check["figures"].get(key, [])}


def _outside(error: float, floor: float, factor: float) -> bool:
    """Whether an error is too large; where eager itself overflows nothing finite can be said to be."""
    return not math.isfinite(error) or (math.isfinite(floor) and error > factor * floor)


def _panel(
    stretch: _Stretch,
    columns: Mapping[str, Sequence[Any]],
    scale: LogScale,
    factor: float,
    marked: tuple[set[int], set[int]],
) -> str:
    count = len(stretch.rows)
    xs = [SIZE * (i + 0.5) / count for i in range(count)]
    positions = [columns["position"][row] for row in stretch.rows]
    errors = [real(columns["max"][row]) for row in stretch.rows]
    floors = [real(columns["max_floor"][row]) for row in stretch.rows]
    error_line = [(x, scale.y(e) if math.isfinite(e) else math.nan) for x, e in zip(xs, errors, strict=True)]
    floor_line = [(x, scale.y(f) if math.isfinite(f) else math.nan) for x, f in zip(xs, floors, strict=True)]
    limit_line = [(x, scale.y(f * factor) if math.isfinite(f) else math.nan) for x, f in zip(xs, floors, strict=True)]
    places = [(x, 0.0 if math.isnan(y) else y) for x, y in error_line]  # what is not finite is marked at the top
    ties, wrong = marked
    bad = [
        place
        for place, error, floor, position in zip(places, errors, floors, positions, strict=True)
        if _outside(error, floor, factor) or position in wrong
    ]
    tied = [place for place, position in zip(places, positions, strict=True) if position in ties]
    drawn = [
        scale.grid(),
        f'<path class="floor" d="{area(floor_line)}"/>',
        f'<path class="limit" d="{line(limit_line)}"/>',
        f'<path class="error" d="{line(error_line) if count > 1 else dots(places)}"/>',
        f'<path class="dot bad" d="{dots(bad)}"/>' if bad else "",
        f'<path class="ring" d="{dots(tied)}"/><path class="hole" d="{dots(tied)}"/>' if tied else "",
        *(_hover(columns, row, SIZE * i / count, SIZE / count) for i, row in enumerate(stretch.rows)),
    ]
    label = _words(stretch.name, positions, errors, floors, factor)
    return (
        f'<div class="panel" style="flex-grow:{math.sqrt(count):.2f}">{svg("".join(drawn), label)}'
        f'<p aria-hidden="true">{escape(stretch.name)}<br><span>{span(positions[0], positions[-1])}</span></p></div>'
    )


def _hover(columns: Mapping[str, Sequence[Any]], row: int, left: float, width: float) -> str:
    """A column of the plot that tells its figures to the mouse."""
    error, floor = real(columns["max"][row]), real(columns["max_floor"][row])
    times = f" ({ratio(error / floor)} times)" if floor and math.isfinite(floor) else ""
    title = (
        f"position {columns['position'][row]}\n"
        f"largest error {figure(error)}, floor {figure(floor)}{times}\n"
        f"rms {figure(columns['rms'][row])}, floor {figure(columns['rms_floor'][row])}\n"
        f"KL {figure(columns['kl'][row])} nats"
    )
    return f'<rect class="hover" x="{left:.1f}" width="{width:.1f}" height="{SIZE}"><title>{title}</title></rect>'


def _words(name: str, positions: Sequence[int], errors: Sequence[float], floors: Sequence[float], factor: float) -> str:
    finite = [error for error in errors if math.isfinite(error)]
    outside = sum(_outside(error, floor, factor) for error, floor in zip(errors, floors, strict=True))
    extent = f"from {figure(min(finite))} to {figure(max(finite))}" if finite else "nowhere finite"
    return (
        f"{name}, positions {positions[0]} to {positions[-1]}: largest error {extent}; "
        f"{plural(outside, 'position') if outside else 'no position'} outside the limit"
    )
