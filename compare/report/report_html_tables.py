"""The tables of report.html: checks with their ratios, other top-1 tokens, limits, and what ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blockexport.compare.report.report_html_text import capital, escape, figure, full_stop, plural, ratio, real
from blockexport.compare.report.report_limits import title_of_limit

LIMIT_AT = 0.7  # where on a bar the limit stands
TOKENS_SHOWN = 60  # rows of the table of top-1 tokens
TOKENS_LISTED = 12  # positions in one such row


def checks_table(data: Mapping[str, Any]) -> str:
    """A body of two rows for each check: its figures, and what it says."""
    bodies = "".join(_check(check) for check in data["checks"])
    bodies += "".join(
        f'<tbody class="skipped"><tr><th scope="row">{escape(skipped["name"])}</th><td colspan="4">does not apply</td>'
        f'</tr><tr><td class="said" colspan="5">{full_stop(capital(skipped["reason"]))}</td>'
        "</tr></tbody>"
        for skipped in data["skipped"]
    )
    return (
        '<table class="checks"><thead><tr><th scope="col">Check</th><th scope="col">Verdict</th>'
        '<th scope="col">rms error <small>over eager’s</small></th>'
        '<th scope="col">Largest <small>over eager’s there</small></th>'
        f'<th scope="col" class="number">Ties</th></tr></thead>{bodies}</table>'
    )


def _check(check: Mapping[str, Any]) -> str:
    figures, verdict = check["figures"], check["verdict"]
    bars = "<td></td><td></td>"
    if "rms_floor" in figures and verdict != "not judged":
        shares = ((figures[f"{kind}_ratio"], figures[f"{kind}_limit"]) for kind in ("rms", "max"))
        bars = "".join(f"<td>{_bar(*share)}</td>" for share in shares)
    ties = str(len(figures["ties"])) if "ties" in figures else ""
    return (
        f'<tbody class="{verdict_class(verdict)}"><tr><th scope="row">{escape(check["name"])}</th>'
        f'<td><span class="badge">{escape(verdict)}</span></td>{bars}<td class="number">{ties}</td></tr>'
        f'<tr><td class="said" colspan="5">{full_stop(capital(check["message"]))}</td></tr></tbody>'
    )


def _bar(value: Any, limit: Any) -> str:
    """A ratio as a bar from 0 to a little past its limit, and in figures."""
    share = real(value) / real(limit)
    over = not share <= 1
    width = min(share * LIMIT_AT, 1.0) if share == share else 1.0
    return (
        f'<span class="measure{" over" if over else ""}"><span class="value">{ratio(value)} '
        f"<small>of {real(limit):g}</small></span>"
        f'<span class="bar" aria-hidden="true"><i style="width:{width:.1%}"></i></span></span>'
    )


def verdict_class(verdict: str) -> str:
    """The CSS class of a verdict: `pass`, `fail` or `open`."""
    return verdict if verdict in ("pass", "fail") else "open"


def tokens_table(data: Mapping[str, Any]) -> str:
    """Positions at which the artifact's likeliest token is another one than the reference's."""
    rows = list(_token_rows(data))
    if not rows:
        judged = any("ties" in check["figures"] for check in data["checks"])
        said = (
            "Wherever it was judged, the artifact’s likeliest token is the reference’s."
            if judged
            else ("None of the checks that ran looks at the likeliest token.")
        )
        return f"<p>{said}</p>"
    factor = real(data["tolerances"]["tie_factor"]["value"])
    more = len(rows) - TOKENS_SHOWN
    rest = f'<p class="note">And {plural(more, "more position")}, in report.json.</p>' if more > 0 else ""
    return (
        f"<p>The reference prefers its own token by the margin. Up to {factor:g} times the floor there it is a tie, "
        "counted and no failure.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Other top-1 tokens">'
        '<table class="plain"><thead><tr><th scope="col">Check</th>'
        '<th scope="col" class="number">Position</th><th scope="col" class="number">Reference’s token</th>'
        '<th scope="col" class="number">Artifact’s token</th><th scope="col" class="number">Margin</th>'
        '<th scope="col" class="number">Tie up to</th><th scope="col">Verdict</th></tr></thead>'
        f"<tbody>{''.join(rows[:TOKENS_SHOWN])}</tbody></table></div>{rest}"
    )


def _token_rows(data: Mapping[str, Any]) -> Iterator[str]:
    columns = data["positions"]
    where = {p: i for i, p in enumerate(columns.get("position", []))}
    factor = real(data["tolerances"]["tie_factor"]["value"])
    for check in data["checks"]:
        along = check["name"] in ("prefill", "decode", "last-slot") and "top1" in columns
        for key, words, verdict in (("disagreements", "differs", "fail"), ("ties", "tie", "pass")):
            head = f'<tr class="{verdict}"><th scope="row">{escape(check["name"])}</th>'
            badge = f'<td><span class="badge">{words}</span></td></tr>'
            positions = check["figures"].get(key, [])
            if positions and not along:  # of rows of their own, of which the report has no more than the positions
                listed = ", ".join(map(str, positions[:TOKENS_LISTED])) + (" …" if positions[TOKENS_LISTED:] else "")
                yield f'{head}<td class="listed" colspan="5">{listed}</td>{badge}'
                continue
            for position in positions:
                i = where[position]
                limit = factor * real(columns["max_floor"][i])
                cells = (position, columns["reference_top1"][i], columns["top1"][i], figure(columns["margin"][i]))
                numbers = "".join(f'<td class="number">{cell}</td>' for cell in (*cells, figure(limit)))
                yield f"{head}{numbers}{badge}"


def weight_rounding(data: Mapping[str, Any]) -> str:
    """What rounding the weights costs, in a sentence."""
    cost, precision = data["weight_rounding"], data["artifact"]["precision"]
    if cost is None:
        return f"<p>No weight is rounded: {escape(precision)} holds every value of the source.</p>"
    return (
        f"<p>Rounding the weights to {escape(precision)} costs <b>{figure(cost['rms'])}</b> (rms) by itself, in a "
        f"float64 run; {figure(cost['max'])} at the most, {figure(cost['relative_l2'])} relative to the outputs. It is "
        "part of the floor and of the error alike.</p>"
    )


def limits_list(data: Mapping[str, Any]) -> str:
    """Every factor with the evidence that set it."""
    entries = "".join(
        f"<div><dt>{escape(capital(title_of_limit(name)))} <b>{real(entry['value']):.3g}</b></dt>"
        f"<dd>{escape(entry['evidence'])}</dd></div>"
        for name, entry in data["tolerances"].items()
    )
    return f'<dl class="limits">{entries}</dl>'


def environment(data: Mapping[str, Any]) -> str:
    """What was judged, on what, and with which versions."""
    artifact, tokens = data["artifact"], data["tokens"]
    kind = ["headless"] if artifact["headless"] else []
    kind += ["logits of the last position only"] if artifact["last_logits_only"] else []
    stretches = [f"a prefill of {tokens['prefill']}", plural(tokens["decode"], "step")]
    stretches += [f"the last {plural(tokens['last'], 'slot')}"] if tokens["last"] else []
    entries = [
        ("Model", artifact["model_type"]),
        ("Precision", artifact["precision"]),
        ("Cache", plural(artifact["max_sequence_length"], "slot")),
        *([("Outputs", ", ".join(kind))] if kind else []),
        ("Backend", artifact["backend"]),
        *([("Called as", artifact["convention"])] if "convention" in artifact else []),
        ("Arithmetic", f"{artifact['arithmetic']['note']}; {_whose(artifact)}"),
        ("Tokens", f"{tokens['count']:,}, {tokens['origin']}"),
        ("Stretches", ", ".join(stretches)),
        ("Reference", "eager PyTorch in float64 on the source’s weights, the whole sequence, no cache"),
        ("Floor", f"eager PyTorch’s own error in {artifact['precision']} on the same tokens"),
        *((name, version) for name, version in data["versions"].items()),
    ]
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in entries)
    return f'<dl class="facts">{shown}</dl>'


def _whose(artifact: Mapping[str, Any]) -> str:
    return "that of the target" if artifact["arithmetic"]["is_target"] else "not that of the target"
