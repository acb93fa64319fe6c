"""The geometry of the plots in report.html: a logarithmic scale, and path data for lines, dots and areas.

An SVG has a square of 1000 by 1000 units stretched to the size of its box; strokes keep their width, and a dot is a
line of no length with round ends, so it stays round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blockexport.compare.report.report_text import power

SIZE = 1000
DECADES = 14  # shown at most, the largest ones
STEPS = (0.0, math.log10(2), math.log10(5), 1.0)  # where a scale may end within a decade


@dataclass(frozen=True)
class Hover:
    """A column of a plot that shows its figures to the mouse."""

    left: float
    width: float
    title: str


@dataclass(frozen=True)
class LogScale:
    """Logarithms to base 10 at the bottom and at the top."""

    low: float
    high: float

    def y(self, value: float) -> float:
        """From the top; values beyond an end lie on it."""
        if value <= 0:
            return SIZE
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return SIZE * (1 - min(max(share, 0.0), 1.0))

    @property
    def ticks(self) -> list[int]:
        """The powers of ten that get a line: all, or every other one of many."""
        step = 1 if self.high - self.low <= 6 else 2
        return list(range(math.floor(self.high), math.ceil(self.low) - 1, -step))

    @property
    def grid(self) -> str:
        """Path data of the lines across a plot."""
        return "".join(f"M0 {self.y(10.0**tick):.0f}H{SIZE}" for tick in self.ticks)

    @property
    def labels(self) -> list[tuple[str, str]]:
        """The labels beside a plot, each with its distance from the top."""
        return [(f"{self.y(10.0**tick) / SIZE:.2%}", power(tick)) for tick in self.ticks]


def log_scale(values: Iterable[float]) -> LogScale:
    """A scale on which all finite positive values have a place, from a 1, 2 or 5 of a power of ten to another."""
    # Rounded, so that the last bits of an error of 1 don't decide whether the scale ends there.
    shown = [round(math.log10(value), 6) for value in values if math.isfinite(value) and value > 0] or [0.0]
    top, bottom = max(shown), max(min(shown), max(shown) - DECADES)
    high = math.floor(top) + next(step for step in STEPS if math.floor(top) + step >= top)
    low = math.floor(bottom) + next(step for step in reversed(STEPS) if math.floor(bottom) + step <= bottom)
    return LogScale(min(low, high - 1), high)


def line(points: Sequence[tuple[float, float]]) -> str:
    """Path data through points; where y is NaN it breaks off."""
    parts: list[str] = []
    pen_down = False
    for x, y in points:
        if math.isnan(y):
            pen_down = False
            continue
        parts.append(f"{'L' if pen_down else 'M'}{x:.0f} {y:.0f}")
        pen_down = True
    return "".join(parts)


def dots(points: Iterable[tuple[float, float]]) -> str:
    """Path data of a dot at each point."""
    return "".join(f"M{x:.0f} {y:.0f}h0" for x, y in points)


def area(points: Sequence[tuple[float, float]]) -> str:
    """Path data of what lies under a line; it reaches to the edges of the plot."""
    finite = [(x, y) for x, y in points if not math.isnan(y)]
    if not finite:
        return ""
    edge = [(0.0, finite[0][1]), *finite, (float(SIZE), finite[-1][1])]
    return f"M0 {SIZE}" + "".join(f"L{x:.0f} {y:.0f}" for x, y in edge) + f"V{SIZE}Z"
