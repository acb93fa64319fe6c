"""What the tables of report.html show: key figures, bars, tokens, and what ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, isnan
from typing import Any

from blockexport.compare.core.check import Verdict
from blockexport.compare.core.tolerances import TIE_FACTOR
from blockexport.compare.report.report import Report
from blockexport.compare.report.report_text import figure, plural, ratio

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


def key_figures(report: Report) -> list[KeyFigure]:
    """The few numbers that decided: the worst of each kind, over all checks against the floor."""
    judged = [check for check in report.checks if check.verdict is not Verdict.NOT_JUDGED]
    entries = []
    if measured := [check.stretch for check in judged if check.stretch]:
        rms, largest = max(measured, key=lambda s: s.rms_share), max(measured, key=lambda s: s.max_share)
        wrong, ties = (
            sum(map(len, lists)) for lists in zip(*((s.disagreements, s.ties) for s in measured), strict=True)
        )
        entries = [
            _times(rms.rms_ratio, rms.rms_limit, "rms error, in the worst check"),
            _times(largest.max_ratio, largest.max_limit, "largest error, at the worst position"),
            KeyFigure(f"{wrong:,}", f"likeliest tokens that differ; {plural(ties, 'tie')}"),
        ]
    if report.positions:
        count, slots = len(report.positions.position), report.artifact.max_sequence_length
        entries.append(KeyFigure(f"{count:,}", f"positions in the plot below, of {slots:,} slots"))
    return entries


def _times(times: float, limit: float, words: str) -> KeyFigure:
    return KeyFigure(ratio(times), f"{'times eager’s ' if isfinite(times) else ''}{words}; limit {limit:g}")


def share_of(value: float, limit: float) -> Share:
    """A ratio against its limit."""
    share = value / limit
    return Share(not share <= 1, f"{1.0 if isnan(share) else min(share * LIMIT_AT, 1.0):.1%}")


def verdict_kind(verdict: Verdict) -> str:
    """The CSS class of a verdict: `pass`, `fail` or `open`."""
    return "open" if verdict is Verdict.NOT_JUDGED else str(verdict)


def token_table(report: Report) -> TokenTable:
    """Positions at which the artifact's likeliest token is another one than the reference's."""
    rows = list(_token_rows(report))
    judged = any(check.stretch for check in report.checks)
    return TokenTable(rows[:TOKENS_SHOWN], judged, TIE_FACTOR.value, max(len(rows) - TOKENS_SHOWN, 0))


def _token_rows(report: Report) -> Iterator[TokenRow]:
    columns = report.positions
    for check in report.checks:
        if check.stretch is None:
            continue
        for positions, words, kind in (
            (check.stretch.disagreements, "differs", "fail"),
            (check.stretch.ties, "tie", "pass"),
        ):
            if columns and columns.top1 and columns.reference_top1 and columns.margin and check.check.along:
                for position in positions:
                    i = columns.position.index(position)
                    tokens = (columns.reference_top1[i], columns.top1[i])
                    limit = figure(TIE_FACTOR.value * columns.max_floor[i])
                    yield TokenRow(kind, check.name, words, (position, *tokens, figure(columns.margin[i]), limit))
            elif positions:  # of rows of their own, of which the report has no more than the positions
                listed = ", ".join(map(str, positions[:TOKENS_LISTED])) + (" …" if positions[TOKENS_LISTED:] else "")
                yield TokenRow(kind, check.name, words, listed=listed)


def facts(report: Report) -> list[tuple[str, str]]:
    """What was judged, on what, and with which versions."""
    artifact, tokens = report.artifact, report.tokens
    kind = ["headless"] if artifact.headless else []
    kind += ["logits of the last position only"] if artifact.last_logits_only else []
    if artifact.embedding is not None:
        one = artifact.embedding
        kind += [f"embeddings by {one.pooling} pooling", "normalised" if one.normalized else "not normalised"]
    stretches = [f"a prefill of {tokens.prefill}", plural(tokens.decode, "step")]
    stretches += [f"the last {plural(tokens.last, 'slot')}"] if tokens.last else []
    whose = "that of the target" if artifact.arithmetic.is_target else "not that of the target"
    return [
        ("Model", artifact.model_type),
        ("Precision", str(artifact.precision)),
        ("Cache", plural(artifact.max_sequence_length, "slot")),
        *([("Outputs", ", ".join(kind))] if kind else []),
        ("Backend", artifact.backend),
        *([("Called as", artifact.convention)] if artifact.convention is not None else []),
        ("Arithmetic", f"{artifact.arithmetic.note}; {whose}"),
        ("Tokens", f"{tokens.count:,}, {tokens.origin}"),
        ("Stretches", ", ".join(stretches)),
        ("Reference", "eager PyTorch in float64 on the source’s weights, the whole sequence, no cache"),
        ("Floor", f"eager PyTorch’s own error in {artifact.precision} on the same tokens"),
        *report.versions.items(),
    ]
