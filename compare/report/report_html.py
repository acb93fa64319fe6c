"""`report.html`: the whole report as one file that needs nothing else, drawn from what `report.json` holds.

No script, no font and no picture is loaded, and the page's own policy forbids it. The same report gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from blockexport.compare.report.report_html_charts import position_chart
from blockexport.compare.report.report_html_layers import layer_figures
from blockexport.compare.report.report_html_style import STYLE
from blockexport.compare.report.report_html_tables import (
    checks_table,
    environment,
    limits_list,
    tokens_table,
    verdict_class,
    weight_rounding,
)
from blockexport.compare.report.report_html_text import capital, escape, figure, full_stop, plural, ratio, real

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_SIGNS = {
    "pass": '<path d="M3 18l8 9L28 5"/>',
    "fail": '<path d="M4 4l24 24M28 4L4 28"/>',
    "open": '<path d="M7 10a9 8 0 1 1 12 7.500c-2.500 1-3 2-3 5M16 29h0"/>',
}


def to_html(data: Mapping[str, Any]) -> str:
    """The page for a report.

    Args:
        data: the values of `report.json`, as `Report.to_json` gives them.
    """
    kind, artifact = verdict_class(data["verdict"]), data["artifact"]
    title = f"{capital(data['verdict'])}: {artifact['model_type']} in {artifact['precision']}, {artifact['backend']}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n'
        f'<body class="{kind}">\n{_header(data, kind)}\n<main>\n{_sections(data)}\n</main>\n{_footer(data)}\n'
        "</body>\n</html>\n"
    )


def _header(data: Mapping[str, Any], kind: str) -> str:
    artifact = data["artifact"]
    what = f"Parity report · {artifact['model_type']} · {artifact['precision']} · {artifact['backend']}"
    arithmetic = artifact["arithmetic"]
    caution = (
        ""
        if arithmetic["is_target"]
        else (f'<p class="caution">The arithmetic is not the target’s: {full_stop(arithmetic["note"])}</p>')
    )
    caution += "".join(f'<p class="caution">Note: {full_stop(note)}</p>' for note in data["notes"])
    return (
        f'<header><div><p class="eyebrow">{escape(what)}</p>'
        f'<h1 id="verdict"><svg viewBox="0 0 32 32" aria-hidden="true">{_SIGNS[kind]}</svg>'
        f'{escape(capital(data["verdict"]))}</h1><p class="lead">{full_stop(data["summary"])}</p>{caution}'
        f"{_key_figures(data)}</div></header>"
    )


def _key_figures(data: Mapping[str, Any]) -> str:
    """The few numbers that decided: the worst of each kind, over all checks against the floor."""
    judged = [check for check in data["checks"] if check["verdict"] != "not judged"]
    measured = [check["figures"] for check in judged if "rms_floor" in check["figures"]]
    tokens = [check["figures"] for check in judged if "disagreements" in check["figures"]]
    entries = []
    for kind, words in (("rms", "rms error, in the worst check"), ("max", "largest error, at the worst position")):
        if measured:
            worst = max(measured, key=lambda figures: _share(figures, kind))
            limit = real(worst[f"{kind}_limit"])
            worst_ratio = real(worst[f"{kind}_ratio"])
            times = "times eager’s " if isfinite(worst_ratio) else ""
            entries.append((ratio(worst_ratio), f"{times}{words}; limit {limit:g}"))
    if tokens:
        wrong, ties = (sum(len(figures[k]) for figures in tokens) for k in ("disagreements", "ties"))
        entries.append((f"{wrong:,}", f"likeliest tokens that differ; {plural(ties, 'tie')}"))
    if data["positions"]:
        count, slots = len(data["positions"]["position"]), data["artifact"]["max_sequence_length"]
        entries.append((f"{count:,}", f"positions in the plot below, of {slots:,} slots"))
    cells = "".join(f"<div><dt>{words}</dt><dd>{number}</dd></div>" for number, words in entries)
    return f'<dl class="key">{cells}</dl>' if cells else ""


def _share(figures: Mapping[str, Any], kind: str) -> float:
    share = real(figures[f"{kind}_ratio"]) / real(figures[f"{kind}_limit"])
    return share if share == share else float("inf")


def _sections(data: Mapping[str, Any]) -> str:
    explanation = data.get("explanation")
    chart = position_chart(data)
    bodies = [
        (_WHY[data["verdict"]], _difference(explanation, data) if explanation else _complaints(data)),
        ("Error against the noise floor", chart and _CHART_NOTE + chart),
        ("Inside the graph", layer_figures(explanation, data) if explanation else ""),
        ("Checks", checks_table(data)),
        ("Top-1 tokens", tokens_table(data)),
        ("Rounding the weights", weight_rounding(data) if data["positions"] else ""),
        ("What ran", environment(data)),
        ("Limits and their evidence", limits_list(data)),
    ]
    return "\n".join(f"<section><h2>{title}</h2>{body}</section>" for title, body in bodies if body)


_WHY = {"pass": "What differs", "fail": "What is wrong", "not judged": "Why not"}
_CHART_NOTE = (
    '<p class="note">The largest difference from the float64 reference over all outputs of a position, on a '
    "logarithmic scale.</p>"
)


def _complaints(data: Mapping[str, Any]) -> str:
    """Without an explanation: what the checks that did not pass say."""
    said = (
        f"<li><b>{escape(check['name'])}</b> {full_stop(capital(check['message']))}</li>"
        for check in data["checks"]
        if check["verdict"] != "pass"
    )
    items = "".join(said)
    return f'<ul class="complaints">{items}</ul>' if items else ""


def _difference(explanation: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Place and cause; what failed, where the outputs along the judged sequence have neither."""
    known = explanation["tried"] or explanation["file"]
    parts = (
        ("First difference", _place(explanation)),
        ("Likely cause", _causes(explanation) if known else ""),
        ("What else is known", "".join(f"<p>{full_stop(capital(said))}</p>" for said in explanation["remarks"])),
    )
    said = "".join(f'<div class="finding"><h3>{title}</h3>{body}</div>' for title, body in parts if body)
    return said if known else _complaints(data) + said


def _place(explanation: Mapping[str, Any]) -> str:
    located = explanation["located"]
    doubt = _doubt(explanation["replay_ratio"]) if explanation["reproduced"] is False else ""
    where = f"<p>{full_stop(capital(explanation['where']))}</p>" if explanation["where"] else ""
    slot = explanation["wrong_slot"]
    earlier = f"<p>{full_stop(capital(slot['sentence']))}</p>" if slot is not None else ""
    if located is None:
        note = explanation["note"] or explanation["within"]
        return f"{where}{f'<p>{full_stop(capital(note))}</p>' if note else ''}{doubt}{earlier}"
    steps = [f"position {located['position']}"]
    steps += [] if located["layer"] is None else [f"layer {located['layer']}"]
    steps.append(located["label"])
    path = "".join(f"<li>{escape(step)}</li>" for step in steps)
    absent = " The graph has no such value, and the next one differs." if located["absent"] else ""
    also = [layer for layer in located["layers"] if layer != located["layer"]]
    others = f" {_layers(also)} of {'their' if len(also) > 1 else 'its'} own accord." if also else ""
    return f'{where}<ol class="path">{path}</ol><p>{_size(located)}{absent}{others}</p>{doubt}{earlier}'


def _size(located: Mapping[str, Any]) -> str:
    """How the first difference differs."""
    if not located["finite"]:
        return "It is NaN or infinite."
    times = "" if located["times"] is None else f" It is {real(located['times']):.6g} times eager’s."
    later = f" The first NaN or infinity is in {full_stop(located['not_finite'])}" if located["not_finite"] else ""
    return f"Relative error {figure(located['error'])}; eager’s own is {figure(located['floor'])}.{times}{later}"


def _doubt(distance: float) -> str:
    return (
        f'<p class="caution">The replay does not reproduce the artifact’s outputs ({ratio(distance)} times the noise '
        "floor away): what it sees inside need not be what the backend did.</p>"
    )


def _layers(layers: list[int]) -> str:
    names = ", ".join(map(str, layers))
    return f"Layers {names} also differ" if len(layers) > 1 else f"Layer {names} also differs"


def _causes(explanation: Mapping[str, Any]) -> str:
    causes = explanation["causes"]
    alike = [cause for cause in causes if cause["alike"]]
    if not causes and explanation["file"]:
        return "".join(f"<p>{full_stop(message)}</p>" for message in explanation["file"])
    if not causes:
        said = _none(explanation)
    elif len(alike) > 1:
        said = "<p>These cannot be told apart on the given tokens:</p>" + _cause_list(alike)
    else:
        said = _cause_list(alike)
    small = escape(", ".join(explanation["too_small_titles"]))
    return said + (f'<p class="note">Defects too small to see on these tokens: {small}.</p>' if small else "")


def _none(explanation: Mapping[str, Any]) -> str:
    """That the catalogue holds nothing like it, and what comes near."""
    if not explanation["tried"]:
        return ""
    nearest, near = explanation["nearest"], ""
    if nearest is not None:
        near = (
            f" Nearest, but does not reproduce them: {escape(nearest['cause'])} (off by {figure(nearest['rms'])} where "
            f"the model with nothing wrong is off by {figure(explanation['error'])}; noise {figure(nearest['floor'])})."
        )
    return f"<p>None of {explanation['tried']} known defects reproduces these logits.{near}</p>"


def _cause_list(causes: Iterable[Mapping[str, Any]]) -> str:
    items = []
    for cause in causes:
        scope = f", {escape(cause['scope'])}" if cause["scope"] else ""
        items.append(
            f'<li><p class="cause">{escape(capital(cause["cause"]))}{scope}.</p>'
            f'<p class="note">Eager with this defect gives the artifact’s outputs '
            f"to {figure(cause['rms'])} (its noise floor is {figure(cause['floor'])}); it moves them by "
            f"{figure(cause['effect'])}.</p></li>"
        )
    return f'<ol class="causes">{"".join(items)}</ol>'


def _footer(data: Mapping[str, Any]) -> str:
    version = data["versions"].get("blockexport", "")
    return (
        f"<footer><p>blockexport {escape(version)} · every figure is in <code>report.json</code>, schema "
        f"{escape(data['schema_version'])}</p></footer>"
    )
