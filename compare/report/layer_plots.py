"""The inside of a graph in report.html: error over layers, and the map of every value that was compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockexport.compare.core.tolerances import SITE_FACTOR
from blockexport.compare.explain.sites import LABELS
from blockexport.compare.report.log_scale import SIZE, Hover, LogScale, dots, log_scale
from blockexport.compare.report.report_text import figure, ratio

if TYPE_CHECKING:
    from blockexport.compare.explain.graph_values import SiteError
    from blockexport.compare.explain.location import Location, Search

FACTOR = SITE_FACTOR.value
EMBEDDING = "embedding"
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


def inside(search: Search | None) -> LayerFigures | None:
    """Both figures, of the call in which the first difference lies; None where nothing inside was compared."""
    if search is None or not search.rows:
        return None
    start = search.location.call if search.location else search.rows[-1].call.start
    values = [row for row in search.rows if row.call.start == start]
    last = values[0].call.stop - 1
    where = f"of positions {start} to {last}" if last > start else f"of position {start}"
    return LayerFigures(where, _plot(values), _map(values, search.location))


def _column(value: SiteError) -> int | str:
    """Its layer, or BEFORE or AFTER."""
    return value.layer if value.layer is not None else BEFORE if value.site == EMBEDDING else AFTER


def _times(value: SiteError) -> float:
    """The error in units of the floor."""
    if math.isnan(value.error):
        return math.inf
    return value.error / value.floor if value.floor else (math.inf if value.error else 0.0)


def _name(column: int | str) -> str:
    return {BEFORE: "embedding", AFTER: "final norm and head"}.get(str(column), f"layer {column}")


def _said(value: SiteError) -> str:
    return f"error {figure(value.error)}, floor {figure(value.floor)}"


def _plot(values: Sequence[SiteError]) -> LayerPlot:
    order = list(dict.fromkeys(map(_column, values)))  # that of the forward pass
    present = [value for value in values if not value.absent]
    worst = [max((v for v in present if _column(v) == c), key=_times, default=None) for c in order]
    shown = [value for value in worst if value is not None]
    scale = log_scale(number for v in shown for number in (v.error, v.floor, FACTOR * v.floor))
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
        limits += f"M{step * i:.0f} {scale.y(value.floor * FACTOR):.0f}h{step:.0f}"
        hovers.append(Hover(step * i, step, f"{_name(order[i])}: {LABELS[value.site]}\n{_said(value)}"))
    guilty = ", ".join(_name(_column(value)) for value in shown if value.outside)
    marks = [("stem", stems), ("dot", dots(good)), ("dot bad", dots(bad))]
    return LayerPlot(
        [
            ("stem", "the artifact, relative error"),
            ("floor", "noise floor"),
            ("limit", f"limit, {FACTOR:g} times the floor"),
        ],
        scale,
        f"error over layers: outside the limit {guilty or 'nowhere'}",
        [("grid", scale.grid), ("floor", floors), ("limit", limits), *marks],
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


def _map(values: Sequence[SiteError], first: Location | None) -> LayerMap:
    order = list(dict.fromkeys(map(_column, values)))
    found = {(_column(value), value.site): value for value in values}
    sites = {value.site for value in values}
    rows = [
        MapRow(label.split(" (")[0], label, [_cell(found.get((column, site)), first) for column in order])
        for site, label in LABELS.items()
        if site in sites
    ]
    return LayerMap(SHADES, len(order) <= ROOMY, order, rows, len(values), sum(value.outside for value in values))


def _cell(value: SiteError | None, location: Location | None) -> Cell | None:
    if value is None:
        return None
    first = location is not None and (location.layer, location.site) == (value.layer, value.site)
    said = "not in the graph" if value.absent else f"{_said(value)} ({ratio(_times(value))} times)"
    return Cell(
        "absent" if value.absent else _shade(value),
        first,
        f"{_name(_column(value))}, {LABELS[value.site]}\n{said}",
        "first difference" if first else "outside" if value.outside else "",
    )


def _shade(value: SiteError) -> str:
    if not value.outside:
        return "in"
    return f"o{1 + sum(_times(value) >= FACTOR * bound for bound in FAR)}"
