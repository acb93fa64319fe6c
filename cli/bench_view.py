"""How `blockexport bench` looks on a terminal: the machine, a table of the cases, a table of the sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from blockexport.cli import console
from blockexport.models.wording import plural, size
from blockexport.runtime.compute_device import CPU_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from blockexport.runtime.bench.bench_result import BenchResult, CaseFigures, PhaseFigures, Spread

NOT_TOLD = "not told"
HEADINGS = ("rows", "context", "side", "median", "low - high", "tokens/s", "roofline", "times [1]", "energy")
SIDE_HEADINGS = ("side", "load", "before load", "resident", "its own", "peak")


@dataclass(frozen=True)
class Phase:
    """A part of a case that has a table and a picture of its own."""

    name: Literal["prefill", "decode"]
    title: str

    def of(self, figures: CaseFigures) -> PhaseFigures:
        """Its figures."""
        found: PhaseFigures = getattr(figures, self.name)
        return found


PHASES = (
    Phase("prefill", "Prefill: from the prompt to its first new token"),
    Phase("decode", "Decoding: a step after the prompt"),
)


def show(result: BenchResult) -> None:
    """Print the whole result on stdout."""
    out = console.stdout_console()
    for line in headlines(result):
        out.print(line, soft_wrap=True)
    for phase in PHASES:
        out.print()
        out.print(_phase_table(result, phase))
    out.print()
    out.print(_side_table(result))
    out.print()
    for line in footnotes(result):
        out.print(line, style="dim", soft_wrap=True)


def headlines(result: BenchResult) -> Iterator[str]:
    """What the machine is and can do, and how it was measured."""
    plan = result.plan
    yield f"{result.processor or 'this machine'}, {plural(plan.threads, 'thread')}"
    for speed in result.speeds.values():
        how = "read from memory" if speed.device == CPU_NAME else "moved by a copy"
        yield (
            f"{speed.device.upper()}: {speed.memory_bandwidth / 1e9:.1f} GB/s {how}, "
            f"{speed.matrix_peak / 1e9:,.0f} GFLOP/s in {speed.matrix_type} matrices"
        )
    yield (
        f"medians of {plural(plan.rounds, 'round')}, the sides in turns; each case run once untimed, then once timed: "
        f"the prompt, and {plural(plan.steps, 'step')} after it"
    )


def footnotes(result: BenchResult) -> Iterator[str]:
    """What has to be known about the figures."""
    yield (
        "roofline: the share of the speed that this bandwidth and peak allow, counting the weights, the cache that is "
        "seen, and the logits of one token; times [1]: as long as side [1], the median of the rounds; energy: of the "
        "whole processor, per token"
    )
    for number, side in enumerate(result.sides, start=1):
        said = "; ".join((side.version, *side.side.notes))
        yield f"[{number}] {side.side.name}: {said}"
    if not result.enough:
        yield f"medians of {plural(result.plan.rounds, 'round')} are for trying out: give --rounds 5 or more"


def phase_rows(result: BenchResult, phase: Phase) -> Iterator[tuple[str, ...]]:
    """The rows of a phase's table: for each case, the figures of each side."""
    for i, (batch_size, context) in enumerate(result.plan.cases):
        for number, side in enumerate(result.sides, start=1):
            figures = phase.of(side.cases[i])
            joules = figures.joules_per_token
            yield (
                str(batch_size),
                f"{context:,}",
                f"[{number}]",
                milliseconds(figures.seconds.median),
                extent(figures.seconds),
                rate(figures.tokens_per_second),
                percent(figures.share),
                f"{figures.times_first:.2f}",
                NOT_TOLD if joules is None else f"{joules:.3g} J",
            )


def side_rows(result: BenchResult) -> Iterator[tuple[str, ...]]:
    """The rows of the sides' own table: loading, and memory."""
    for number, side in enumerate(result.sides, start=1):
        memory = (side.before.resident, side.after.resident, side.after.own, side.after.peak)
        load = milliseconds(side.load_seconds.median)
        yield (f"[{number}] {side.side.name}", load, *(memory_size(value) for value in memory))


def _phase_table(result: BenchResult, phase: Phase) -> Table:
    table = _table(HEADINGS, title=phase.title)
    for row in phase_rows(result, phase):
        table.add_row(*row)
    return table


def _side_table(result: BenchResult) -> Table:
    table = _table(SIDE_HEADINGS, title="Load time and memory")
    table.columns[0].justify, table.columns[0].overflow = "left", "fold"
    for row in side_rows(result):
        table.add_row(*row)
    return table


def _table(headings: tuple[str, ...], title: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right", header_style="dim")
    return table


def milliseconds(seconds: float) -> str:
    """Three digits: 0.123 ms, 21.3 ms, 1,340 ms."""
    value = seconds * 1e3
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f} ms"


def extent(spread: Spread) -> str:
    """The least and the largest, in milliseconds."""
    return " - ".join(milliseconds(seconds).removesuffix(" ms") for seconds in (spread.lowest, spread.highest))


def rate(value: float) -> str:
    """Tokens per second."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def percent(share: float | None) -> str:
    """Whole percents; nothing where it is not known."""
    return "" if share is None else f"{share:.0%}" if share >= 0.01 else f"{share:.1%}"


def memory_size(value: float | None) -> str:
    """Bytes of memory."""
    return NOT_TOLD if value is None else size(value)
