"""The rows of the result table, shared by the terminal and report.md."""

from __future__ import annotations

from typing import Any, NamedTuple

from blockexport.compare.report import Report
from blockexport.compare.tolerances import MANY_POSITIONS, MAX_FACTOR, RMS_FACTOR, RMS_FACTOR_FEW

HEADINGS = ("check", "verdict", "rms", "floor", "ratio", "largest", "floor", "ratio", "worst at", "ties")


LIMITS = (
    f"Ratios are against the floor: at most {RMS_FACTOR.value:g} for the rms over a check's positions "
    f"({RMS_FACTOR_FEW.value:g} below {MANY_POSITIONS}), at most {MAX_FACTOR.value:g} for the largest difference at "
    "each position (shown: the worst)."
)


class Row(NamedTuple):
    """One line: the cells of `HEADINGS`; empty where a check has no such figure."""

    cells: tuple[str, ...]
    verdict: str


def table_rows(report: Report) -> list[Row]:
    """A row for each check, and one for what rounding the weights costs."""
    rows = [Row((r.name, str(r.verdict), *_cells(r.figures)), str(r.verdict)) for r in report.checks]
    cost = report.weight_rounding
    if cost is not None:
        cells = ("(weights)", "", number(cost["rms"]), "", "", number(cost["max"]), "", "", "", "")
        rows.append(Row(cells, ""))
    return rows


def _cells(figures: Any) -> tuple[str, ...]:
    if "rms_floor" not in figures:
        ties = figures.get("ties")
        return ("", "", "", "", "", "", "", "" if ties is None else str(len(ties)))
    return (
        number(figures["rms"]),
        number(figures["rms_floor"]),
        _times(figures["rms_ratio"]),
        number(figures["max"]),
        number(figures["max_floor"]),
        _times(figures["max_ratio"]),
        str(figures["worst_position"]),
        str(len(figures["ties"])),
    )


def _times(ratio: float) -> str:
    """Hundredths where they matter."""
    return f"{ratio:.2f}" if ratio < 100 else number(ratio)


def number(value: float) -> str:
    """Two significant digits."""
    return f"{value:.2g}"


def full_sentence(said: str) -> str:
    """What was said in lower case and without a full stop, as a sentence."""
    return f"{said[0].upper()}{said[1:]}."
