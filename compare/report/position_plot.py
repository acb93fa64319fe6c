"""The plot of report.html over positions: largest error against the noise floor and the limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blockexport.compare.report.log_scale import SIZE, Hover, LogScale, area, dots, line, log_scale
from blockexport.compare.report.report_text import figure, plural, ratio, real, span


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


@dataclass(frozen=True)
class _Stretch:
    """The judged positions of one stretch; rows are indices into the parallel lists of the report."""

    name: str
    rows: list[int]


def position_plot(data: Mapping[str, Any]) -> PositionPlot | None:
    """Largest error at each position against the noise floor and the limit; None where nothing was walked."""
    columns = data["positions"]
    if not columns:
        return None
    factor = real(data["tolerances"]["max_factor"]["value"])
    errors, floors = [real(v) for v in columns["max"]], [real(v) for v in columns["max_floor"]]
    scale = log_scale([*errors, *floors, *(factor * value for value in floors)])
    ties, disagreements = _marked(data, "ties"), _marked(data, "disagreements")
    panels = [
        _panel(stretch, columns, scale, factor, (ties, disagreements)) for stretch in _stretches(data) if stretch.rows
    ]
    legend = [
        ("error", "the artifact"),
        ("floor", "noise floor, eager’s own error"),
        ("limit", f"limit, {factor:g} times the floor"),
    ]
    outside = any(_outside(error, floor, factor) for error, floor in zip(errors, floors, strict=True))
    at_top = "" if all(map(math.isfinite, errors)) else " (at the top: NaN or infinity)"
    legend += [("mark", f"outside the limit{at_top}, or another top-1 token")] if outside or disagreements else []
    legend += [("tie", "top-1 tied")] if ties & set(columns["position"]) else []
    return PositionPlot(legend, scale, panels)


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
) -> Panel:
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
    paths = [
        ("grid", scale.grid),
        ("floor", area(floor_line)),
        ("limit", line(limit_line)),
        ("error", line(error_line) if count > 1 else dots(places)),
    ]
    paths += [("dot bad", dots(bad))] if bad else []
    paths += [("ring", dots(tied)), ("hole", dots(tied))] if tied else []
    return Panel(
        stretch.name,
        span(positions[0], positions[-1]),
        f"{math.sqrt(count):.2f}",
        _words(stretch.name, positions, errors, floors, factor),
        paths,
        [_hover(columns, row, SIZE * i / count, SIZE / count) for i, row in enumerate(stretch.rows)],
    )


def _hover(columns: Mapping[str, Sequence[Any]], row: int, left: float, width: float) -> Hover:
    error, floor = real(columns["max"][row]), real(columns["max_floor"][row])
    times = f" ({ratio(error / floor)} times)" if floor and math.isfinite(floor) else ""
    title = (
        f"position {columns['position'][row]}\n"
        f"largest error {figure(error)}, floor {figure(floor)}{times}\n"
        f"rms {figure(columns['rms'][row])}, floor {figure(columns['rms_floor'][row])}\n"
        f"KL {figure(columns['kl'][row])} nats"
    )
    return Hover(left, width, title)


def _words(name: str, positions: Sequence[int], errors: Sequence[float], floors: Sequence[float], factor: float) -> str:
    finite = [error for error in errors if math.isfinite(error)]
    outside = sum(_outside(error, floor, factor) for error, floor in zip(errors, floors, strict=True))
    extent = f"from {figure(min(finite))} to {figure(max(finite))}" if finite else "nowhere finite"
    return (
        f"{name}, positions {positions[0]} to {positions[-1]}: largest error {extent}; "
        f"{plural(outside, 'position') if outside else 'no position'} outside the limit"
    )
