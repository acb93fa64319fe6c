"""What the tables of report.html show, worked out from report.json: key figures, bars, tokens, and what ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from blockexport.compare.report.report_text import figure, plural, ratio, real

LIMIT_AT = 0.7  # where on a bar the limit stands
TOKENS_SHOWN = 60  # rows of the table of top-1 tokens
TOKENS_LISTED = 12  # positions in one such row


@dataclass(frozen=True)
class KeyFigure:
    """A number that decided, and the words under it."""

    number: str
    words: str


@dataclass(frozen=True)
class Share:
    """A ratio as the length of a bar whose limit stands at `LIMIT_AT`."""

    over: bool
    width: str


@dataclass(frozen=True)
class TokenRow:
    """A position, or several of a check that has rows of its own (`listed`), with another top-1 token."""

    kind: str
    check: str
    words: str
    cells: tuple[Any, ...] = ()
    listed: str = ""


@dataclass(frozen=True)
class TokenTable:
    """`judged` says whether any check looked at tokens; `more` is how many rows are not shown."""

    rows: list[TokenRow]
    judged: bool
    factor: float
    more: int


def key_figures(data: Mapping[str, Any]) -> list[KeyFigure]:
    """The few numbers that decided: the worst of each kind, over all checks against the floor."""
    judged = [check for check in data["checks"] if check["verdict"] != "not judged"]
    measured = [check["figures"] for check in judged if "rms_floor" in check["figures"]]
    tokens = [check["figures"] for check in judged if "disagreements" in check["figures"]]
    entries = []
    for kind, words in (("rms", "rms error, in the worst check"), ("max", "largest error, at the worst position")):
        if measured:
            worst = max(measured, key=lambda figures: _badness(figures, kind))
            limit, times = real(worst[f"{kind}_limit"]), real(worst[f"{kind}_ratio"])
            said = "times eager’s " if isfinite(times) else ""
            entries.append(KeyFigure(ratio(times), f"{said}{words}; limit {limit:g}"))
    if tokens:
        wrong, ties = (sum(len(figures[k]) for figures in tokens) for k in ("disagreements", "ties"))
        entries.append(KeyFigure(f"{wrong:,}", f"likeliest tokens that differ; {plural(ties, 'tie')}"))
    if data["positions"]:
        count, slots = len(data["positions"]["position"]), data["artifact"]["max_sequence_length"]
        entries.append(KeyFigure(f"{count:,}", f"positions in the plot below, of {slots:,} slots"))
    return entries


def _badness(figures: Mapping[str, Any], kind: str) -> float:
    share = real(figures[f"{kind}_ratio"]) / real(figures[f"{kind}_limit"])
    return share if share == share else float("inf")


def share_of(value: Any, limit: Any) -> Share:
    """A ratio against its limit."""
    share = real(value) / real(limit)
    width = min(share * LIMIT_AT, 1.0) if share == share else 1.0
    return Share(not share <= 1, f"{width:.1%}")


def verdict_kind(verdict: str) -> str:
    """The CSS class of a verdict: `pass`, `fail` or `open`."""
    return verdict if verdict in ("pass", "fail") else "open"


def token_table(data: Mapping[str, Any]) -> TokenTable:
    """Positions at which the artifact's likeliest token is another one than the reference's."""
    rows = list(_token_rows(data))
    return TokenTable(
        rows[:TOKENS_SHOWN],
        any("ties" in check["figures"] for check in data["checks"]),
        real(data["tolerances"]["tie_factor"]["value"]),
        max(len(rows) - TOKENS_SHOWN, 0),
    )


def _token_rows(data: Mapping[str, Any]) -> Iterator[TokenRow]:
    columns = data["positions"]
    where = {p: i for i, p in enumerate(columns.get("position", []))}
    factor = real(data["tolerances"]["tie_factor"]["value"])
    for check in data["checks"]:
        along = check["name"] in ("prefill", "decode", "last-slot") and "top1" in columns
        for key, words, kind in (("disagreements", "differs", "fail"), ("ties", "tie", "pass")):
            positions = check["figures"].get(key, [])
            if positions and not along:  # of rows of their own, of which the report has no more than the positions
                listed = ", ".join(map(str, positions[:TOKENS_LISTED])) + (" …" if positions[TOKENS_LISTED:] else "")
                yield TokenRow(kind, check["name"], words, listed=listed)
                continue
            for position in positions:
                i = where[position]
                limit = figure(factor * real(columns["max_floor"][i]))
                tokens = (columns["reference_top1"][i], columns["top1"][i])
                yield TokenRow(kind, check["name"], words, (position, *tokens, figure(columns["margin"][i]), limit))


def facts(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was judged, on what, and with which versions."""
    artifact, tokens = data["artifact"], data["tokens"]
    kind = ["headless"] if artifact["headless"] else []
    kind += ["logits of the last position only"] if artifact["last_logits_only"] else []
    stretches = [f"a prefill of {tokens['prefill']}", plural(tokens["decode"], "step")]
    stretches += [f"the last {plural(tokens['last'], 'slot')}"] if tokens["last"] else []
    whose = "that of the target" if artifact["arithmetic"]["is_target"] else "not that of the target"
    return [
        ("Model", artifact["model_type"]),
        ("Precision", artifact["precision"]),
        ("Cache", plural(artifact["max_sequence_length"], "slot")),
        *([("Outputs", ", ".join(kind))] if kind else []),
        ("Backend", artifact["backend"]),
        *([("Called as", artifact["convention"])] if "convention" in artifact else []),
        ("Arithmetic", f"{artifact['arithmetic']['note']}; {whose}"),
        ("Tokens", f"{tokens['count']:,}, {tokens['origin']}"),
        ("Stretches", ", ".join(stretches)),
        ("Reference", "eager PyTorch in float64 on the source’s weights, the whole sequence, no cache"),
        ("Floor", f"eager PyTorch’s own error in {artifact['precision']} on the same tokens"),
        *data["versions"].items(),
    ]
