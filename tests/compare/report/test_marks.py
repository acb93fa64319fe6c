"""Each mark of the page, line of the table and word of the facts, on a report made by hand."""

from __future__ import annotations

import html
import math
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from blockexport.compare.checks.catalogue import choose_checks
from blockexport.compare.core.check import CheckResult, Verdict
from blockexport.compare.core.figures import StretchFigures
from blockexport.compare.core.tolerances import MAX_FACTOR, SITE_FACTOR, TIE_FACTOR
from blockexport.compare.explain.explanation import Explanation
from blockexport.compare.explain.graph_values import SiteError
from blockexport.compare.explain.location import Location, Search
from blockexport.compare.report.layer_plots import LayerFigures, inside
from blockexport.compare.report.log_scale import LogScale, area, line, log_scale
from blockexport.compare.report.position_plot import PositionPlot, position_plot
from blockexport.compare.report.report import Artifact, Positions, Report, RoundingCost, Skipped, Stretches
from blockexport.compare.report.report_html import to_html
from blockexport.compare.report.report_markdown import to_markdown
from blockexport.compare.report.report_table import render_table
from blockexport.compare.report.report_text import figure, plural, span
from blockexport.compare.report.report_values import facts, key_figures, share_of, token_table, verdict_kind
from blockexport.models.precision import Precision
from blockexport.runtime.backends import Arithmetic

NAN, INF = math.nan, math.inf
LIMIT = MAX_FACTOR.value
GOOD = StretchFigures(
    positions=8, first_position=0, last_position=7, rms=1.0, rms_floor=1.0, rms_ratio=1.0, rms_limit=2.0, max=1.0,
    max_floor=1.0, max_ratio=2.0, max_limit=8.0, worst_position=0, relative_l2=0.0, kl_mean=0.0, not_finite=[], ties=[],
    disagreements=[],
)  # fmt: skip


def result(name: str, verdict: Verdict = Verdict.PASS, **changes: Any) -> CheckResult:
    return CheckResult(choose_checks((name,))[0], verdict, f"{name} says so", replace(GOOD, **changes))


def report_of(
    errors: list[float], *checks: CheckResult, floors: list[float] | None = None, slots: int = 8, **artifact: Any
) -> Report:
    """A prefill of 3 and steps after it, as many as there are errors; floors of 1."""
    count = len(errors)
    floors = floors or [1.0] * count
    ones = [1.0] * count
    tokens = Positions(list(range(count)), ones, ones, errors, floors, ones, [7] * count, [9] * count, [0.5] * count)
    arithmetic = Arithmetic(is_target=True, can_judge=True, note="as it is")
    made = Artifact("onnxruntime", Precision.FP32, slots, False, False, "llama", arithmetic)
    return Report(
        replace(made, **artifact), Stretches("made by hand", 8, 3, 3, 2), checks, (), None, tokens, {"torch": "2"}
    )


def plot_of(report: Report) -> PositionPlot:
    found = position_plot(report)
    assert found is not None
    return found


def paths(plot: PositionPlot, panel: int = 0) -> dict[str, str]:
    return dict(plot.panels[panel].paths)


def test_the_stretches_of_the_plot() -> None:
    plot = plot_of(report_of([1.0] * 8))
    assert [(p.name, p.span) for p in plot.panels] == [("prefill", "0–2"), ("decode", "3–5"), ("last slots", "6–7")]
    assert [p.grow for p in plot.panels] == ["1.73", "1.73", "1.41"]
    assert [p.name for p in plot_of(report_of([1.0] * 6, slots=6)).panels] == ["prefill", "decode to the last slot"]
    (alone, *_) = plot_of(report_of([1.0])).panels
    assert (alone.span, alone.paths[-1][0]) == ("0", "error") and "h0" in dict(alone.paths)["error"]


def test_lines_of_the_plot() -> None:
    plot = plot_of(report_of([10.0] * 3, floors=[3.0, 2.0, 3.0]))
    marks, y = paths(plot), plot.scale.y
    assert marks["error"] == "M167 {0:.0f}L500 {0:.0f}L833 {0:.0f}".format(y(10.0))
    assert marks["limit"] == "M167 {1:.0f}L500 {0:.0f}L833 {1:.0f}".format(y(2 * LIMIT), y(3 * LIMIT))
    assert marks["floor"].startswith(f"M0 1000L0 {y(3.0):.0f}L167 {y(3.0):.0f}L500 {y(2.0):.0f}L")
    assert plot.panels[0].hovers[1].title.splitlines() == [
        "position 1", "largest error 10, floor 2.0 (5.00 times)", "rms 1.0, floor 1.0", "KL 1.0 nats",
    ]  # fmt: skip
    assert plot.legend[2] == ("limit", f"limit, {LIMIT:g} times the floor") and len(plot.legend) == 3
    assert "largest error from 10 to 10; no position outside" in plot.panels[0].label


def test_marks_of_the_plot() -> None:
    plot = plot_of(report_of([LIMIT, 1.5 * LIMIT, 1.0]))
    assert paths(plot)["dot bad"].count("h0") == 1 and "1\u00a0position outside" in plot.panels[0].label
    assert ("mark", "outside the limit, or another top-1 token") in plot.legend
    lost = plot_of(report_of([1.0, NAN, 1.0]))
    assert paths(lost)["dot bad"] == "M500 0h0" and paths(lost)["error"].count("M") == 2
    assert ("mark", "outside the limit (at the top: NaN or infinity), or another top-1 token") in lost.legend
    overflow = plot_of(report_of([1e9, 1.0, 1.0], floors=[INF, 1.0, 1.0]))
    assert "dot bad" not in paths(overflow) and "times" not in overflow.panels[0].hovers[0].title
    unsure = plot_of(report_of([1e9, 1.0, 1.0], floors=[NAN, 1.0, 1.0]))
    assert "dot bad" not in paths(unsure)
    tied = plot_of(report_of([1.0] * 3, result("prefill", ties=[1], disagreements=[2])))
    assert paths(tied)["ring"] == paths(tied)["hole"] != paths(tied)["dot bad"] != ""
    assert ("tie", "top-1 tied") in tied.legend and tied.legend[-2][0] == "mark"


def value(layer: int | None, site: str, error: float, *, absent: bool = False, call: int = 0) -> SiteError:
    return SiteError(range(call, call + 4), layer, site, error, 1.0, absent)


def figures_of(*values: SiteError, first: SiteError | None = None) -> LayerFigures:
    place = (
        None if first is None else Location(1, first.call.start, first.layer, first.site, 1.0, 1.0, False, frozenset())
    )
    found = inside(Search(place, True, 0.0, values, (), (range(4), range(4, 8)), 2))
    assert found is not None
    return found


def test_error_over_layers() -> None:
    far = 2 * SITE_FACTOR.value
    bad = value(1, "q_proj", far)
    small = replace(value(0, "k_proj", 0.4), floor=0.1)
    plot = figures_of(
        value(None, "embedding", 0.5), value(0, "q_proj", 2.0), small, value(0, "v_proj", NAN, absent=True), bad,
        value(None, "head", 0.5), first=bad,
    ).plot  # fmt: skip
    assert [name for _, name in plot.names] == ["in", 0, 1, "out"]
    assert plot.label == "error over layers: outside the limit layer 1"
    marks = dict(plot.paths)
    assert marks["dot bad"] == f"M625 {plot.scale.y(far):.0f}h0" and marks["dot"].count("h0") == 3
    assert (
        f" {plot.scale.y(SITE_FACTOR.value):.0f}h" in marks["limit"] and f"V{plot.scale.y(1.0):.0f}" in marks["floor"]
    )
    assert plot.hovers[1].title == "layer 0: k projection\nerror 0.40, floor 0.10"  # the farthest from its own floor
    assert figures_of(value(0, "q_proj", 1.0)).plot.label.endswith("nowhere")
    lost = figures_of(value(0, "q_proj", 9.0), value(0, "k_proj", NAN)).plot
    assert lost.hovers[0].title.startswith("layer 0: k projection") and dict(lost.paths)["dot bad"] == "M500 0h0"
    assert len(figures_of(*(value(i, "q_proj", 1.0) for i in range(30))).plot.names) == 10
    assert inside(None) is None and inside(Search(None, True, 0.0, (), (), (range(4),), 1)) is None


def test_the_map_of_values() -> None:
    limit = SITE_FACTOR.value
    errors = [1.0, 2 * limit, 20 * limit, 2e3 * limit, 2e5 * limit]
    values = [value(i, "q_heads", error) for i, error in enumerate(errors)]
    found = figures_of(*values, value(5, "q_heads", NAN, absent=True), value(1, "q_proj", 1.0), first=values[1])
    assert found.call == "of positions 0 to 3" and (found.map.count, found.map.outside) == (7, 4)
    names = [row.name for row in found.map.rows]
    assert names == ["q projection", "q as heads"] and "QK-norm" in found.map.rows[1].title
    assert [cell is None for cell in found.map.rows[0].cells] == [True, False, True, True, True, True]
    cells = [cell for cell in found.map.rows[1].cells if cell]
    assert [cell.kind for cell in cells] == ["in", "o1", "o2", "o3", "o4", "absent"]
    assert [cell.first for cell in cells] == [False, True, False, False, False, False]
    assert [cell.aloud for cell in cells] == ["", "first difference", "outside", "outside", "outside", ""]
    assert cells[5].title.endswith("\nnot in the graph") and cells[1].title.endswith(f"({2 * limit:.1f} times)")
    assert found.map.roomy and not figures_of(*(value(i, "q_proj", 1.0) for i in range(13))).map.roomy
    one = SiteError(range(5, 6), 0, "q_proj", 1.0, 1.0)
    assert figures_of(values[0], one).call == "of position 5"  # the last call, where nothing differs


def test_the_scale() -> None:
    assert log_scale([1.0000001, 0.01]) == LogScale(-2, 0) and log_scale([3.0]).high == pytest.approx(math.log10(5))
    scale = LogScale(-2, 0)
    assert [scale.y(v) for v in (0.0, 1e-9, 0.01, 0.1, 1.0, 1e9)] == [1000, 1000, 1000, 500, 0, 0]
    assert scale.ticks == [0, -1, -2] and LogScale(-8, 0).ticks == [0, -2, -4, -6, -8]
    assert log_scale([1.0, 1e-30]).low == -14 and log_scale([1.0, 1.0]) == LogScale(-1, 0)
    assert line([(0, 1), (1, NAN), (2, 3), (4, 5)]) == "M0 1M2 3L4 5"
    assert area([(10, 5), (20, NAN)]) == "M0 1000L0 5L10 5L1000 5V1000Z" and area([(1, NAN)]) == ""


def test_key_figures_and_bars() -> None:
    bad = result("decode", rms_ratio=3.0, max_ratio=1.0, disagreements=[4])
    unjudged = result("chunked", Verdict.NOT_JUDGED, rms_ratio=100.0)
    entries = key_figures(report_of([1.0] * 8, result("prefill", max_ratio=7.0, ties=[1, 2]), bad, unjudged))
    assert [entry.number for entry in entries] == ["3.00", "7.00", "1", "8"]
    assert (
        entries[0].words == "times eager’s rms error, in the worst check; limit 2" and "2\u00a0ties" in entries[2].words
    )
    (lost, *_) = key_figures(report_of([1.0], bad, result("prefill", rms_ratio=NAN)))
    assert (lost.number, lost.words) == ("NaN", "rms error, in the worst check; limit 2")
    shares = [share_of(v, 2.0) for v in (1.0, 2.0, 2.1, 99.0, NAN)]
    assert [(s.over, s.width) for s in shares] == [
        (False, "35.0%"), (False, "70.0%"), (True, "73.5%"), (True, "100.0%"), (True, "100.0%"),
    ]  # fmt: skip
    assert [verdict_kind(v) for v in Verdict] == ["pass", "fail", "open"]
    page = to_html(report_of([1.0], result("prefill", rms_ratio=3.0), unjudged))
    assert page.count('class="measure over"') == 1 and page.count('class="measure"') == 1


def test_the_table_of_tokens() -> None:
    many = result("batch", ties=list(range(13)))
    table = token_table(report_of([1.0] * 8, result("prefill", ties=[1], disagreements=[2]), many))
    first, second, third = table.rows
    assert first.cells == (2, 9, 7, "0.50", figure(TIE_FACTOR.value)) and (first.words, first.kind) == (
        "differs",
        "fail",
    )
    assert (second.cells[0], second.words, second.kind) == (1, "tie", "pass")
    assert third.listed == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 …" and table.judged and table.more == 0
    assert token_table(report_of([1.0] * 8, result("batch", ties=[5]))).rows[0].listed == "5"
    long = report_of([1.0] * 70, result("prefill", ties=list(range(70))), slots=70)
    assert len(token_table(long).rows) == 60 and token_table(long).more == 10
    assert "And 10\u00a0more positions, in report.json." in to_html(long)
    nothing = replace(result("determinism"), figures=None)
    assert "None of the checks that ran looks at the likeliest token." in to_html(report_of([1.0], nothing))


def test_what_ran() -> None:
    plain = dict(facts(report_of([1.0])))
    assert "Outputs" not in plain and "Called as" not in plain and plain["Arithmetic"].endswith("; that of the target")
    assert plain["Stretches"] == "a prefill of 3, 3\u00a0steps, the last 2\u00a0slots"
    other = Arithmetic(is_target=False, can_judge=True, note="wider")
    report = report_of([1.0], headless=True, last_logits_only=True, convention="genai", arithmetic=other)
    told = dict(facts(replace(report, tokens=replace(report.tokens, last=0, decode=1))))
    assert told["Outputs"] == "headless, logits of the last position only" and told["Called as"] == "genai"
    assert told["Arithmetic"] == "wider; not that of the target" and told["Stretches"] == "a prefill of 3, 1\u00a0step"
    assert (plural(2, "step"), span(3, 3), span(3, 4)) == ("2\u00a0steps", "3", "3–4")


def everything() -> Report:
    """Arithmetic of another kind, a note, a check that does not apply, one that is not judged, and an explanation."""
    report = report_of(
        [1.0] * 8, result("prefill"), result("decode", Verdict.NOT_JUDGED), headless=True, last_logits_only=True,
        arithmetic=Arithmetic(is_target=False, can_judge=True, note="wider than the target"),
    )  # fmt: skip
    search = Search(None, True, 0.0, (value(0, "q_proj", 1.0),), (), (range(4),), 1)
    return replace(
        report,
        skipped=(Skipped("types", "no graph here"),),
        notes=("a file was changed",),
        weight_rounding=RoundingCost(0.5, 0.6, 0.7),
        explanation=Explanation(search, None),
    )


def test_the_page_says_everything() -> None:
    page = html.unescape(to_html(everything()))
    assert "The arithmetic is not the target’s: wider than the target." in page and "Note: a file was changed." in page
    assert "<h2>Why not</h2>" in page and "Decode</b>" not in page and "decode says so" not in page.split("<h2>Why")[0]
    assert "<li><b>decode</b> Decode says so.</li>" in page and "<b>prefill</b>" not in page
    assert "Every value inside the graph stays within the floor" in page
    assert page.count('class="measure"') == 2  # of the check that was judged
    assert 'aria-label="prefill, positions 0 to 2:' in page and "<title>position 0\n" in page
    assert "costs <b>0.50</b> (rms)" in page and "No graph here." in page
    signs = {Verdict.PASS: "M3 18l8 9L28 5", Verdict.FAIL: "M4 4l24 24", Verdict.NOT_JUDGED: "M7 10a9 8"}
    for verdict, sign in signs.items():
        assert sign in to_html(report_of([1.0], result("prefill", verdict)))
    assert "Rounding the weights" not in to_html(replace(everything(), positions=None))


def test_swatches_and_the_first_difference_are_drawn() -> None:
    bad = value(0, "q_proj", 99.0)
    place = Location(1, 0, 0, "q_proj", 99.0, 1.0, False, frozenset((0,)))
    found = Explanation(Search(place, True, 0.0, (bad,), (), (range(4),), 1), None)
    tied = result("prefill", ties=[1], disagreements=[2])
    page = to_html(replace(report_of([1.0] * 3, tied), explanation=found))
    swatches = page.split('<ul class="legend">')[1].split("</ul>")[0]
    for mark in ('"floor" d="M0 10H28V2H0Z"', '"dot bad" d="M14 6h0"', '"hole" d="M14 6h0"', '"limit" d="M0 6H28"'):
        assert mark in swatches
    assert '<td class="cell o2 first"' in page


def test_the_terminal_and_the_markdown_page_say_everything() -> None:
    console = Console(width=200, record=True, file=StringIO())
    console.print(render_table(everything()))
    said = console.export_text()
    assert "types: does not apply; no graph here" in said and "Note: a file was changed." in said
    assert "wider than the target" in said and "decode: decode says so" in said and "prefill: prefill" not in said
    page = to_markdown(everything())
    assert "- types: does not apply; no graph here." in page and "\nNote: a file was changed.\n" in page
    assert "; not that of the target\n" in page and "\n- Outputs: headless, logits of the last position only\n" in page
    assert "## First difference and likely cause" in page and "Ratios are against the floor" in page
    bare = replace(report_of([1.0], replace(result("types"), figures=None)), positions=None)
    assert "Ratios are against" not in to_markdown(bare) and "First difference" not in to_markdown(bare)
    assert "; that of the target\n" in to_markdown(bare) and "headless" not in to_markdown(bare)


def test_names_of_strangers_add_nothing_to_the_markdown_page() -> None:
    name = "w\n# Pass\x1b[2J<img src=x onerror=alert(1)>"
    page = to_markdown(replace(everything(), notes=(f"{name} is odd",)))
    assert "\nNote: w\\u000a# Pass\\u001b[2J&lt;img src=x onerror=alert(1)> is odd.\n" in page
