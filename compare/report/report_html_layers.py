"""The inside of a graph in report.html: error over layers, and the map of every value that was compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from blockexport.compare.report.report_html_charts import SIZE, dots, log_scale, svg, swatch
from blockexport.compare.report.report_html_text import escape, figure, plural, ratio, real

BEFORE, BEHIND = "in", "out"  # the columns of what belongs to no layer
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
    """A value of the graph; `column` is its layer, or BEFORE or BEHIND."""

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


def layer_figures(explanation: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Both figures, of the call in which the first difference lies; empty where nothing inside was compared."""
    columns = explanation["values"]
    if not columns["call"]:
        return ""
    located = explanation["located"]
    call = located["call"] if located else columns["call"][-1]
    values = _values(columns, call)
    factor = real(data["tolerances"]["site_factor"]["value"])
    length = next(stop - start for start, stop in explanation["looked"] if start == call)
    what = f"of positions {call} to {call + length - 1}" if length > 1 else f"of position {call}"
    return (
        "<h3>Error over layers</h3>"
        f'<p class="note">In the call {what}. Each layer is given the stream and the cache '
        "that the artifact had on entering it, so errors do not add up from layer to layer. Of each layer, the value "
        "farthest from its floor.</p>"
        f"{_chart(values, explanation['labels'], factor)}"
        "<h3>Every value inside</h3>"
        f"{_map(values, explanation, factor)}"
    )


def _values(columns: Mapping[str, Sequence[Any]], call: int) -> list[_Value]:
    rows = zip(
        *(columns[k] for k in ("call", "layer", "site", "error", "floor", "absent", "outside")),
        strict=True,
    )
    values: list[_Value] = []
    for start, layer, site, error, floor, absent, outside in rows:
        if start == call:
            column = layer if layer is not None else BEFORE if site == "embedding" else BEHIND
            values.append(_Value(column, site, real(error), real(floor), absent, outside))
    return values


def _order(values: Sequence[_Value]) -> list[int | str]:
    """The columns, in the order of the forward pass."""
    return list(dict.fromkeys(value.column for value in values))


def _name(column: int | str) -> str:
    return {BEFORE: "embedding", BEHIND: "final norm and head"}.get(str(column), f"layer {column}")


def _chart(values: Sequence[_Value], labels: Mapping[str, str], factor: float) -> str:
    order = _order(values)
    worst = [
        max((v for v in values if v.column == c and not v.absent), key=lambda v: v.times, default=None) for c in order
    ]
    shown = [value for value in worst if value is not None]
    scale = log_scale(number for v in shown for number in (v.error, v.floor, factor * v.floor))
    step = SIZE / len(order)
    good: list[tuple[float, float]] = []
    bad: list[tuple[float, float]] = []
    stems, floors, limits, hovers = [], [], [], []
    for i, value in enumerate(worst):
        if value is None:
            continue
        x, top = step * (i + 0.5), scale.y(value.error) if math.isfinite(value.error) else 0.0
        (bad if value.outside else good).append((x, top))
        stems.append(f"M{x:.0f} {SIZE}V{top:.0f}")
        floors.append(f"M{step * i:.0f} {SIZE}V{scale.y(value.floor):.0f}H{step * (i + 1):.0f}V{SIZE}Z")
        limits.append(f"M{step * i:.0f} {scale.y(value.floor * factor):.0f}h{step:.0f}")
        what = labels[value.site]
        title = escape(f"{_name(value.column)}: {what}\nerror {figure(value.error)}, floor {figure(value.floor)}")
        hovers.append(
            f'<rect class="hover" x="{step * i:.1f}" width="{step:.1f}" height="{SIZE}"><title>{title}</title></rect>'
        )
    drawn = (
        f'{scale.grid()}<path class="floor" d="{"".join(floors)}"/><path class="limit" d="{"".join(limits)}"/>'
        f'<path class="stem" d="{"".join(stems)}"/><path class="dot" d="{dots(good)}"/>'
        f'<path class="dot bad" d="{dots(bad)}"/>{"".join(hovers)}'
    )
    guilty = [_name(value.column) for value in shown if value.outside]
    label = f"error over layers: outside the limit {', '.join(guilty) if guilty else 'nowhere'}"
    every = math.ceil(len(order) / 12)
    names = "".join(
        f'<span style="left:{(i + 0.5) / len(order):.2%}">{escape(column)}</span>'
        for i, column in enumerate(order)
        if (column % every == 0 if isinstance(column, int) else every == 1 or column == BEHIND)
    )
    legend = [
        swatch("stem", "the artifact, relative error"),
        swatch("floor", "noise floor"),
        swatch("limit", f"limit, {factor:g} times the floor"),
    ]
    return (
        f'<figure class="chart low"><ul class="legend">{"".join(legend)}</ul><div class="plot">{scale.axis()}'
        f'<div class="panels"><div class="panel">{svg(drawn, label)}<div class="ticks" aria-hidden="true">{names}</div>'
        "</div></div></div></figure>"
    )


def _map(values: Sequence[_Value], explanation: Mapping[str, Any], factor: float) -> str:
    order = _order(values)
    found = {(value.column, value.site): value for value in values}
    labels = {site: label for site, label in explanation["labels"].items() if any(v.site == site for v in values)}
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in order)
    rows = "".join(
        f'<tr><th scope="row" title="{escape(label)}">{escape(label.split(" (")[0])}</th>'
        + "".join(_cell(found.get((column, site)), explanation, label, factor) for column in order)
        + "</tr>"
        for site, label in labels.items()
    )
    outside = sum(value.outside for value in values)
    roomy = " roomy" if len(order) <= ROOMY else ""
    key = "".join(f'<li><span class="cell {kind}"></span>{words}</li>' for kind, words in SHADES.items())
    return (
        f'<ul class="legend">{key}</ul>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Every value inside, by layer">'
        f'<table class="map{roomy}"><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<p class="note">{plural(len(values), "value")} compared, {outside} outside the limit. Columns are layers; '
        "“in” is the embedding, “out” the final norm and the head.</p>"
    )


def _cell(value: _Value | None, explanation: Mapping[str, Any], label: str, factor: float) -> str:
    if value is None:
        return "<td></td>"
    located = explanation["located"]
    layer = value.column if isinstance(value.column, int) else None
    first = located is not None and (located["layer"], located["site"]) == (layer, value.site)
    kind = "absent" if value.absent else _shade(value, factor)
    said = (
        "not in the graph"
        if value.absent
        else f"error {figure(value.error)}, floor {figure(value.floor)} ({ratio(value.times)} times)"
    )
    aloud = "first difference" if first else "outside" if value.outside else ""
    hidden = f'<span class="hidden">{aloud}</span>' if aloud else ""
    title = escape(f"{_name(value.column)}, {label}\n{said}")
    return f'<td class="cell {kind}{" first" if first else ""}" title="{title}">{hidden}</td>'


def _shade(value: _Value, factor: float) -> str:
    if not value.outside:
        return "in"
    return f"o{1 + sum(value.times >= factor * bound for bound in FAR)}"
