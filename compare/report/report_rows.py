"""The rows of the result table, shared by the terminal and report.md."""

from __future__ import annotations

from blockexport.compare.core.figures import StretchFigures
from blockexport.compare.core.tolerances import MAX_FACTOR, RMS_FACTOR, RMS_LUCK
from blockexport.compare.report.report import Report

HEADINGS = ("check", "verdict", "rms", "floor", "ratio", "largest", "floor", "ratio", "at", "ties")
WEIGHTS = "(weights)"


_LIMITS = (
    f"Ratios are against the floor: at most {RMS_FACTOR.value:g} for the rms over a check's positions "
    f"(more where few of them carry eager's error, {1 + RMS_LUCK.value:g} for one), "
    f"at most {MAX_FACTOR.value:g} for the largest difference at each position (shown: the worst, and where it is)."
)


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


def number(value: float) -> str:
    """Two significant digits, in at most six characters."""
    mantissa, e, exponent = f"{value:.2g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa
