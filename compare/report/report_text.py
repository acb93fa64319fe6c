"""Text of the reports: the rows of the result table, numbers as people write them, and sentences."""

from __future__ import annotations

import math
from functools import partial

from blockexport.compare.core.figures import StretchFigures
from blockexport.compare.core.matrix_cost import MOST_TOKENS
from blockexport.compare.core.quantising_cost import QuantisingCost
from blockexport.compare.core.tolerances import MAX_FACTOR, RMS_FACTOR, RMS_LUCK
from blockexport.compare.report.report import Report
from blockexport.models import wording
from blockexport.models.wording import number

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NARROW = "\u202f"  # a narrow space at which no line breaks
PLAIN_FROM, PLAIN_BELOW = 1e-3, 1e5  # numbers in between are written without a power of ten

HEADINGS = ("check", "verdict", "rms", "floor", "ratio", "largest", "floor", "ratio", "at", "ties")
WEIGHTS = "(weights)"


_LIMITS = (
    f"Ratios are against the floor: at most {RMS_FACTOR.value:g} for the rms over a check's positions "
    f"(more where few of them carry eager's error, {1 + RMS_LUCK.value:g} for one), "
    f"at most {MAX_FACTOR.value:g} for the largest difference at each position (shown: the worst, and where it is)."
)


def power(exponent: int) -> str:
    """A power of ten."""
    return "1" if exponent == 0 else "10" + str(exponent).translate(SUPERSCRIPT)


def figure(number: float) -> str:
    """A number with two significant digits: 0.012, or a power of ten."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else ("∞" if number > 0 else "−∞")
    if number == 0:
        return "0"
    mantissa, exponent = f"{abs(number):.1e}".split("e")
    sign = "−" if number < 0 else ""
    if PLAIN_FROM <= abs(number) < PLAIN_BELOW:
        digits = max(1 - int(exponent), 0)
        return f"{sign}{float(f'{abs(number):.1e}'):,.{digits}f}"
    return f"{sign}{mantissa}{NARROW}×{NARROW}{power(int(exponent))}"


def ratio(number: float) -> str:
    """How many times something is another: 0.82, 24.1, 1,340, or a power of ten."""
    if not math.isfinite(number) or number >= PLAIN_BELOW:
        return figure(number)
    return f"{number:.2f}" if number < 10 else f"{number:,.1f}" if number < 100 else f"{number:,.0f}"


plural = partial(wording.plural, space="\u00a0")


def span(first: int, last: int) -> str:
    """A range of positions."""
    return str(first) if first == last else f"{first}–{last}"


def full_stop(text: str) -> str:
    """A sentence of the report, which come without one."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def capital(text: str) -> str:
    """With a capital letter in front, unless it begins with the name of a tensor or a file."""
    name = set(text.partition(" ")[0][:-1]) & set("._/")
    return text if name else text[:1].upper() + text[1:]


def table_rows(report: Report) -> list[tuple[str, ...]]:
    """The cells under `HEADINGS`, empty where a check has no such figure: a row for each check, and one for what
    rounding the weights costs."""
    rows = [(result.name, str(result.verdict), *_cells(result.stretch)) for result in report.checks]
    cost = report.weight_rounding
    if cost is not None:
        rows.append((WEIGHTS, "", number(cost.rms), "", "", number(cost.max), "", "", "", ""))
    return rows


def footnotes(report: Report) -> list[str]:
    """What the table's columns and its last row are."""
    notes = [_LIMITS] if any(result.stretch for result in report.checks) else []
    if report.weight_rounding is not None:
        precision = report.artifact.precision
        notes.append(
            f"{WEIGHTS} is what rounding the weights to {precision} costs by itself, in a float64 run: part of error "
            "and floor alike."
        )
    return notes


COST_HEADINGS = ("run", "mean KL", "99th percentile", "perplexity", "same top-1")


def cost_rows(cost: QuantisingCost) -> list[tuple[str, ...]]:
    """The cells under `COST_HEADINGS`: the checkpoint's own, and a row for each run of the quantised model."""
    return [
        ("checkpoint", "", "", f"{cost.perplexity:,.3f}", ""),
        *(
            (run.run, f"{run.kl_mean:.3g}", f"{run.kl_high:.3g}", f"{run.perplexity:,.3f}", f"{run.agreement:.1%}")
            for run in cost.runs
        ),
    ]


def cost_caption(cost: QuantisingCost) -> str:
    """What was measured on, and what of it decides."""
    limit = "a measurement, no verdict" if cost.max_kl is None else f"the mean KL may be {cost.max_kl:g}"
    windows = plural(-(-cost.tokens // cost.window), "window")
    return (
        f"What quantising costs, beside the checkpoint in float32: {limit}. KL in nats, over "
        f"{plural(cost.tokens, 'position')} of the {cost.origin}, in {windows} of at most {cost.window:,} tokens, the "
        "first positions of each included."
    )


KIND_HEADINGS = ("quantised alone", "matrices", "error", "largest", "in layer", "mean KL")


def kind_rows(cost: QuantisingCost) -> list[tuple[str, ...]]:
    """The cells under `KIND_HEADINGS`: a row for each kind of matrices, the one that costs most first."""
    ordered = sorted(cost.kinds, key=lambda kind: -kind.kl_mean)
    return [
        (
            kind.kind,
            f"{len(kind.errors):,}",
            f"{kind.median:.2%}",
            f"{kind.worst.error:.2%}",
            "" if kind.worst.layer is None else str(kind.worst.layer),
            f"{kind.kl_mean:.3g}",
        )
        for kind in ordered
    ]


def kind_caption(cost: QuantisingCost) -> str:
    """How the cost of each kind was measured."""
    tokens = min(MOST_TOKENS, cost.window)
    return (
        "Error: what the values of a matrix lost, rms over their own rms, the median of the kind and the largest. KL "
        f"in nats, over the first {plural(tokens, 'token')} of the text, of the checkpoint's model with the matrices "
        "of one kind quantised and all others as they were."
    )


def _cells(stretch: StretchFigures | None) -> tuple[str, ...]:
    if stretch is None:
        return ("",) * (len(HEADINGS) - 2)
    return (
        number(stretch.rms),
        number(stretch.rms_floor),
        _times(stretch.rms_ratio),
        number(stretch.max),
        number(stretch.max_floor),
        _times(stretch.max_ratio),
        str(stretch.worst_position),
        str(len(stretch.ties)),
    )


def _times(ratio: float) -> str:
    """Hundredths where they matter."""
    return f"{ratio:.2f}" if ratio < 100 else number(ratio)
