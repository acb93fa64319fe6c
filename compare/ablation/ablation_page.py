"""What an ablation found, in words, as rows of a table, and as a page of one file with the curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockexport.compare.ablation.bearing import CONFIDENCE
from blockexport.compare.ablation.run_folder import Run
from blockexport.compare.ablation.training import CONTEXT, HELD_OUT_SHARE, STRETCH
from blockexport.compare.report.html_page import render_page
from blockexport.compare.report.log_scale import SIZE, Hover, line
from blockexport.models.wording import plural

if TYPE_CHECKING:
    from blockexport.compare.ablation.ablate import Ablation, SwapResult

HEADINGS = ("swap", "before", "after", "change", "± seeds", "± text", "verdict")
CURVES = [
    ("limit", "before the change, mean of the seeds"),
    ("error", "after it"),
    ("floor", "around each: from the lowest seed to the highest"),
]


def rows(ablation: Ablation) -> Iterator[tuple[str, ...]]:
    """The table: a row for each swap."""
    for result in ablation.results:
        found = result.bearing
        margins = (f"{margin:.3f}" for margin in (found.over_seeds, found.over_text))
        sides = (_mean(result.base), _mean(result.changed))
        yield (result.pairing.name, *sides, f"{found.difference:+.3f}", *margins, found.verdict)


def conclusions(ablation: Ablation) -> Iterator[str]:
    """What the data bear out, and what they do not, a sentence each."""
    by_verdict: dict[str, list[SwapResult]] = {"better": [], "worse": [], "not borne out": []}
    for result in ablation.results:
        by_verdict[result.bearing.verdict].append(result)
    for verdict in ("better", "worse"):
        for result in by_verdict[verdict]:
            gap = abs(result.bearing.difference)
            yield f"borne out: {result.pairing.name} ({change(result)}) is {verdict} by {gap:.3f} bits per byte"
    undecided = [result.pairing.name for result in by_verdict["not borne out"]]
    if undecided:
        yield (
            f"not borne out, either way: {', '.join(undecided)}; a difference there lies within what other seeds or "
            "other bytes may change"
        )


def footnotes(ablation: Ablation) -> Iterator[str]:
    """What has to be known about the figures."""
    made, count = ablation.made_with, len(ablation.results)
    yield (
        f"text of {made['text_bytes']:,} bytes, the last 1/{HELD_OUT_SHARE} of each file held out; "
        f"{plural(ablation.seeds, 'seed')}, {plural(made['steps'], 'step')} each; {made['recipe']}"
    )
    yield (
        f"before, after: bits per held-out byte, each read after at most {CONTEXT} others, at the step where a run had "
        "the least; mean over the seeds ± their standard deviation. A negative change is for the better"
    )
    yield (
        f"± seeds, ± text: half of the {CONFIDENCE:.0%} interval of the change, paired by seed, and by stretch of "
        f"{STRETCH} bytes; a change is borne out where it is larger than both. Of {plural(count, 'swap')} without any "
        f"effect, chance makes at most {count * (1 - CONFIDENCE):.2g} look borne out on average"
    )
    yield "one size, one text and one learning rate for all: with others the order may be another"


def change(result: SwapResult) -> str:
    """What a swap changes, and what both models have beside the baseline's choices."""
    swap = result.pairing.swap
    return f"from {swap.words}" + (f"; both sides have {swap.around_words}" if swap.around_words else "")


def _mean(runs: Sequence[Run]) -> str:
    values = [run.bits for run in runs]
    return f"{statistics.fmean(values):.3f}±{statistics.stdev(values):.3f}"


def to_page(ablation: Ablation) -> str:
    """The page's text."""
    from importlib.metadata import version

    scale = _scale([look.held_out for r in ablation.results for run in (*r.base, *r.changed) for look in run.looks[1:]])
    return render_page(
        "ablation.html.jinja",
        {},
        conclusions=list(conclusions(ablation)),
        footnotes=list(footnotes(ablation)),
        headings=HEADINGS,
        rows=list(rows(ablation)),
        legend=CURVES,
        plots_of=[_plot(result, scale) for result in ablation.results],
        version=version("blockexport"),
    )


@dataclass(frozen=True)
class LinearScale:
    """Values at the bottom and at the top, and the lines between them."""

    low: float
    high: float
    step: float

    def y(self, value: float) -> float:
        """From the top; negative above it."""
        return SIZE * (1 - (value - self.low) / (self.high - self.low))

    @property
    def _ticks(self) -> list[float]:
        return [self.low + i * self.step for i in range(round((self.high - self.low) / self.step) + 1)]

    @property
    def grid(self) -> str:
        """Path data of the lines across a plot."""
        return "".join(f"M0 {self.y(tick):.0f}H{SIZE}" for tick in self._ticks)

    @property
    def labels(self) -> list[tuple[str, str]]:
        """The labels beside a plot, each with its distance from the top."""
        return [(f"{self.y(tick) / SIZE:.2%}", f"{tick:g}") for tick in self._ticks]


def _scale(values: Sequence[float]) -> LinearScale:
    """From the lowest value to twice the median's height over it: the first looks would flatten all others."""
    low, middle = min(values), statistics.median(values)
    step = next((step for step in (0.05, 0.1, 0.2, 0.5) if (middle - low) * 2 <= 6 * step), 1.0)
    bottom = math.floor(low / step) * step
    return LinearScale(round(bottom, 2), round(bottom + step * max(2, math.ceil((middle - low) * 2 / step)), 2), step)


@dataclass(frozen=True)
class CurvePlot:
    """The held-out losses of a swap's two models over the steps: path data by CSS class in drawing order."""

    title: str
    words: str
    scale: LinearScale
    label: str
    paths: list[tuple[str, str]]
    hovers: list[Hover]
    names: list[tuple[str, int]]


def _plot(result: SwapResult, scale: LinearScale) -> CurvePlot:
    base, changed, swap = _curve(result.base), _curve(result.changed), result.pairing.swap
    steps = list(base)[1:]  # before any training all are alike
    last = steps[-1]
    paths = [("grid", scale.grid)]
    for kind, curve in (("limit", base), ("error", changed)):
        means = [(SIZE * step / last, scale.y(statistics.fmean(curve[step]))) for step in steps]
        top = [(SIZE * step / last, scale.y(max(curve[step]))) for step in steps]
        bottom = [(SIZE * step / last, scale.y(min(curve[step]))) for step in reversed(steps)]
        paths += [("floor", f"{line([*top, *bottom])}Z"), (kind, line(means))]
    hovers = [
        Hover(
            SIZE * (step - (step - before) / 2) / last,
            SIZE * (step - before) / last,
            f"step {step}\nbefore {_said(base[step])}\nafter {_said(changed[step])}",
        )
        for before, step in zip([0, *steps], steps, strict=False)
    ]
    found = result.bearing
    return CurvePlot(
        f"{result.pairing.name}: {change(result)}",
        f"{found.verdict}: {found.difference:+.3f} bits per byte",
        scale,
        f"from {swap.words}: held-out loss over {last} steps, {found.verdict}",
        paths,
        hovers,
        [("0%", 0), ("50%", last // 2), ("100%", last)],
    )


def _curve(runs: Sequence[Run]) -> dict[int, list[float]]:
    """The held-out losses of all seeds, by step."""
    return {
        looks[0].step: [look.held_out for look in looks] for looks in zip(*(run.looks for run in runs), strict=True)
    }


def _said(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
