"""The inside of a graph in report.html: error over layers, and the map of every value that was compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from blockexport.compare.report.log_scale import SIZE, Hover, LogScale, dots, log_scale
from blockexport.compare.report.report_text import figure, ratio, real

BEFORE, AFTER = "in", "out"  # the columns of what belongs to no layer
ROOMY = 12  # columns that may be wide
FAR = (10.0, 1e3, 1e5)  # times the limit: the shades of what lies outside
SHADES = {
    "in": "within the limit",
    "o1": "outside it",
    "o2": "by 10 times",
    "o3": "by 1,000",
    "o4": "by 100,000",
    "absent": "not in the graph",
    "first": "the first difference",
}


class _Value(NamedTuple):
    """A value of the graph; `column` is its layer, or BEFORE or AFTER."""

    column: int | str
    site: str
    error: float
    floor: float
    absent: bool
    outside: bool

    @property
    def times(self) -> float:
        """The error in units of the floor."""
        if math.isnan(self.error):
            return math.inf
        return self.error / self.floor if self.floor else (math.inf if self.error else 0.0)


@dataclass(frozen=True)
class LayerPlot:
    """Error over layers: path data by CSS class in drawing order, and the names under some columns."""

    legend: list[tuple[str, str]]
    scale: LogScale
    label: str
    paths: list[tuple[str, str]]
    hovers: list[Hover]
    names: list[tuple[str, int | str]]


@dataclass(frozen=True)
class Cell:
    """One compared value: its shade, and what is said of it."""

    kind: str
    first: bool
    title: str
    aloud: str


@dataclass(frozen=True)
class MapRow:
    """A sub-operation over all layers; None where a layer has no such value."""

    name: str
    title: str
    cells: list[Cell | None]


@dataclass(frozen=True)
class LayerMap:
    """Every value that was compared."""

    shades: Mapping[str, str]
    roomy: bool
    columns: list[int | str]
    rows: list[MapRow]
    count: int
    outside: int


@dataclass(frozen=True)
class LayerFigures:
    """Both figures, and the call they are of."""

    call: str
    plot: LayerPlot
    map: LayerMap


def inside(explanation: Mapping[str, Any], data: Mapping[str, Any]) -> LayerFigures | None:
    """Both figures, of the call in which the first difference lies; None where nothing inside was compared."""
    columns = explanation["values"]
    if not columns["call"]:
        return None
    located = explanation["located"]
    call = located["call"] if located else columns["call"][-1]
    values = _values(columns, call)
    factor = real(data["tolerances"]["site_factor"]["value"])
    length = next(stop - start for start, stop in explanation["looked"] if start == call)
    return LayerFigures(
        f"of positions {call} to {call + length - 1}" if length > 1 else f"of position {call}",
        _plot(values, explanation["labels"], factor),
        _map(values, explanation, factor),
    )


def _values(columns: Mapping[str, Sequence[Any]], call: int) -> list[_Value]:
    rows = zip(
        *(columns[k] for k in ("call", "layer", "site", "error", "floor", "absent", "outside")),
        strict=True,
    )
    values: list[_Value] = []
    for start, layer, site, error, floor, absent, outside in rows:
        if start == call:
            column = layer if layer is not None else BEFORE if site == "embedding" else AFTER
            values.append(_Value(column, site, real(error), real(floor), absent, outside))
    return values


def _order(values: Sequence[_Value]) -> list[int | str]:
    """The columns, in the order of the forward pass."""
    return list(dict.fromkeys(value.column for value in values))


def _name(column: int | str) -> str:
    return {BEFORE: "embedding", AFTER: "final norm and head"}.get(str(column), f"layer {column}")


def _plot(values: Sequence[_Value], labels: Mapping[str, str], factor: float) -> LayerPlot:
    order = _order(values)
    worst = [
        max((v for v in values if v.column == c and not v.absent), key=lambda v: v.times, default=None) for c in order
    ]
    shown = [value for value in worst if value is not None]
    scale = log_scale(number for v in shown for number in (v.error, v.floor, factor * v.floor))
    step = SIZE / len(order)
    good: list[tuple[float, float]] = []
    bad: list[tuple[float, float]] = []
    stems, floors, limits, hovers = "", "", "", []
    for i, value in enumerate(worst):
        if value is None:
            continue
        x, top = step * (i + 0.5), scale.y(value.error) if math.isfinite(value.error) else 0.0
        (bad if value.outside else good).append((x, top))
        stems += f"M{x:.0f} {SIZE}V{top:.0f}"
        floors += f"M{step * i:.0f} {SIZE}V{scale.y(value.floor):.0f}H{step * (i + 1):.0f}V{SIZE}Z"
        limits += f"M{step * i:.0f} {scale.y(value.floor * factor):.0f}h{step:.0f}"
        said = f"error {figure(value.error)}, floor {figure(value.floor)}"
        hovers.append(Hover(step * i, step, f"{_name(value.column)}: {labels[value.site]}\n{said}"))
    guilty = [_name(value.column) for value in shown if value.outside]
    return LayerPlot(
        [
            ("stem", "the artifact, relative error"),
            ("floor", "noise floor"),
            ("limit", f"limit, {factor:g} times the floor"),
        ],
        scale,
        f"error over layers: outside the limit {', '.join(guilty) if guilty else 'nowhere'}",
        [
            ("grid", scale.grid),
            ("floor", floors),
            ("limit", limits),
            ("stem", stems),
            ("dot", dots(good)),
            ("dot bad", dots(bad)),
        ],
        hovers,
        _names(order),
    )


def _names(order: Sequence[int | str]) -> list[tuple[str, int | str]]:
    """The names under the columns, with their places; of many layers some."""
    every = math.ceil(len(order) / 12)
    return [
        (f"{(i + 0.5) / len(order):.2%}", column)
        for i, column in enumerate(order)
        if (column % every == 0 if isinstance(column, int) else every == 1 or column == AFTER)
    ]


def _map(values: Sequence[_Value], explanation: Mapping[str, Any], factor: float) -> LayerMap:
    order = _order(values)
    found = {(value.column, value.site): value for value in values}
    labels = {site: label for site, label in explanation["labels"].items() if any(v.site == site for v in values)}
    rows = [
        MapRow(
            label.split(" (")[0],
            label,
            [_cell(found.get((column, site)), explanation, label, factor) for column in order],
        )
        for site, label in labels.items()
    ]
    return LayerMap(SHADES, len(order) <= ROOMY, order, rows, len(values), sum(value.outside for value in values))


def _cell(value: _Value | None, explanation: Mapping[str, Any], label: str, factor: float) -> Cell | None:
    if value is None:
        return None
    located = explanation["located"]
    layer = value.column if isinstance(value.column, int) else None
    first = located is not None and (located["layer"], located["site"]) == (layer, value.site)
    said = (
        "not in the graph"
        if value.absent
        else f"error {figure(value.error)}, floor {figure(value.floor)} ({ratio(value.times)} times)"
    )
    return Cell(
        "absent" if value.absent else _shade(value, factor),
        first,
        f"{_name(value.column)}, {label}\n{said}",
        "first difference" if first else "outside" if value.outside else "",
    )


def _shade(value: _Value, factor: float) -> str:
    if not value.outside:
        return "in"
    return f"o{1 + sum(value.times >= factor * bound for bound in FAR)}"
