"""report.html: whole, safe, the same every time, and, in a browser, quiet, alone and legible."""

from __future__ import annotations

import copy
import html
import json
import re
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport.compare.core.check import CheckResult
from blockexport.compare.core.figures import StretchFigures
from blockexport.compare.core.tolerances import MAX_FACTOR, TABLE
from blockexport.compare.explain.defects import catalogue
from blockexport.compare.explain.diagnosis import Diagnosis
from blockexport.compare.explain.explanation import Explanation
from blockexport.compare.explain.location import Location, Search
from blockexport.compare.explain.sites import LABELS
from blockexport.compare.explain.wrong_slot import WrongSlot
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.judged_bundle import bundle_options
from blockexport.compare.report.report import Report, Skipped
from blockexport.compare.report.report_files import MARK, write_report
from blockexport.compare.report.report_html import to_html
from blockexport.compare.report.report_text import capital, figure, ratio
from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.element_types import BY_NAME
from blockexport.models.wording import number
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.open import open_decoder
from tests.browser import visit
from tests.compare.broken import Broken, noise_at
from tests.compare.judged import judge
from tests.compare.memory_checkpoint import TINY, MemoryCheckpoint, eager_model, random_checkpoint
from tests.exported import EVERYTHING, gainful
from tests.zoo import EXHIBITS
from tests.zoo_judge import build_cage, spoil

M = 64
OPTIONS = JudgeOptions(backend="eager", decode_steps=12, prefill=32)
VOID = {"meta", "link", "br"}


class _Wide(EagerDecoder):
    """Computes in float32 and says that it is float16, where eager overflows."""

    def _allocate(self, batch_size: int) -> None:
        self._past = empty_cache(self.config, batch_size, self.max_sequence_length, torch.float32)


@pytest.fixture(scope="module")
def passed(tiny: MemoryCheckpoint) -> Report:
    decoder = EagerDecoder(eager_model(tiny, torch.float16), M)
    return judge(decoder, tiny, replace(OPTIONS, backend="onnxruntime"))


@pytest.fixture(scope="module")
def located(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """An exported file with the wrong RoPE pairing in layer 2, judged and explained."""
    folder = tmp_path_factory.mktemp("located")
    cage = build_cage(gainful(EVERYTHING), folder / "sound")
    exhibit = next(exhibit for exhibit in EXHIBITS if exhibit.defect == "rope_interleaved")
    spoilt = spoil(replace(exhibit, layers=(2,), layer=2), cage, folder / "spoilt")
    return judge(
        open_decoder(spoilt, "onnxruntime", threads=1, verify="nothing"), cage.checkpoint, bundle_options(spoilt)
    )


@pytest.fixture(scope="module")
def pages(passed: Report, located: Report, tiny: Checkpoint) -> dict[str, Report]:
    """One report of each kind."""
    huge = random_checkpoint(TINY)
    huge.tensors["model.layers.0.mlp.down_proj.weight"] *= 30000
    wide = _Wide(eager_model(huge), M)
    wide.interface = replace(wide.interface, element=BY_NAME["float16"])
    return {
        "pass": passed,
        "located": located,
        "nan": judge(Broken(eager_model(tiny), M, noise_at(40, float("nan"))), tiny, OPTIONS),
        "not judged": judge(wide, huge, replace(OPTIONS, checks=("prefill", "decode"))),
        "no walk": judge(EagerDecoder(eager_model(tiny), M), tiny, replace(OPTIONS, checks=("greedy",))),
    }


class _Reader(HTMLParser):
    """Checks that tags are closed in order, and gathers elements and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)


def read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader


KINDS = ["pass", "located", "nan", "not judged", "no walk"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_report_is_a_whole_page(pages: dict[str, Report], kind: str) -> None:
    report = pages[kind]
    page = to_html(report)
    reader = read(page)
    assert page.startswith("<!DOCTYPE html>")
    assert "".join(reader.text["h1"]) == report.verdict.capitalize()
    assert report.summary in html.unescape(page)
    names = [tag for tag, _ in reader.elements]
    assert not {"script", "img", "iframe", "object", "form"} & set(names)
    for _, attributes in reader.elements:
        assert attributes.get("href", "data:,") == "data:,"
        assert "src" not in attributes and not any(name.startswith("on") for name in attributes)
    assert "url(" not in page and "@import" not in page and "http://" not in page and "https://" not in page
    # A check's name heads its row, and so does that of one that does not apply.
    heads = reader.text["th"]
    assert {result.name for result in report.checks} | dict(report.skipped).keys() <= set(heads)
    assert ("Error against the noise floor" in reader.text["h2"]) is (kind != "no walk")


def test_a_difference_is_told_before_everything_else(pages: dict[str, Report]) -> None:
    page = to_html(pages["located"])
    headings = read(page).text["h2"]
    assert headings[0] == "What is wrong" and headings[2] == "Inside the graph"
    assert "What is wrong" not in read(to_html(pages["pass"])).text["h2"]
    assert '<ol class="path"><li>position 1</li><li>layer 2</li><li>q after RoPE</li></ol>' in page
    assert "RoPE pairs neighbouring dimensions" in page and "only in layer 2" in page
    # Without an explanation: what the checks say.
    alone = to_html(replace(pages["located"], explanation=None))
    assert read(alone).text["h2"][0] == "What is wrong" and "Inside the graph" not in alone


def found_in(report: Report) -> tuple[Explanation, Search, Location, Diagnosis]:
    """What was found out, all of which is there."""
    found = report.explanation
    assert found is not None and found.search is not None and found.search.location is not None
    assert found.diagnosis is not None
    return found, found.search, found.search.location, found.diagnosis


def test_every_finding_has_its_words(pages: dict[str, Report]) -> None:
    report = pages["located"]
    found, search, place, _ = found_in(report)
    slot = WrongSlot(position=40, layer=1, kind="keys", start=33, stop=41)
    found = replace(
        found, where="in the calls of greedy", wrong_slot=slot, remarks=("batch: not located; rows differ",)
    )

    def page_of(**changes: Any) -> str:
        there = replace(search, location=replace(place, **changes))
        return to_html(replace(report, explanation=replace(found, search=there)))

    page = page_of(times=1.1, finite=True, not_finite="layer 2, down projection")
    assert "In the calls of greedy." in page and f"T{slot.sentence[1:]}." in page
    assert "It is 1.1 times eager’s. The first NaN or infinity is in layer 2, down projection." in page
    assert "What else is known" in page and "Batch: not located; rows differ." in page
    assert "It is NaN or infinite." in page_of(finite=False)
    assert "The graph has no such value, and the next one differs." in page_of(absent=True)
    assert "<code>Mul /layers.2/mul</code>" in page_of(node="Mul /layers.2/mul")
    assert "Layer 1 also differs independently." in page_of(layers=frozenset((1, 2)))
    assert "Layers 0, 1 also differ independently." in page_of(layers=frozenset((2, 1, 0)))
    assert "also differ" not in page and "The replay does not reproduce" not in page
    found = replace(found, search=replace(search, reproduced=False, ratio=3.0))
    page = to_html(replace(report, explanation=found))
    assert "The replay does not reproduce the artifact’s outputs (3.00 times the noise floor away)" in page


def test_what_the_file_says_is_the_cause_where_no_defect_is(pages: dict[str, Report]) -> None:
    report = pages["located"]
    found, _, _, diagnosis = found_in(report)
    found = replace(found, file=("model.norm.weight is 1.05 times the checkpoint's",))

    def page_of(found: Explanation) -> str:
        return html.unescape(to_html(replace(report, explanation=found)))

    said = "<p>model.norm.weight is 1.05 times the checkpoint's.</p>"
    assert said not in page_of(found)
    near = replace(diagnosis, findings=(), nearest=replace(diagnosis.findings[0], rms=1e-3), error=0.5)
    found = replace(found, diagnosis=near)
    page = page_of(found)
    assert page.index("Likely cause") < page.index(said) and "known defects" not in page
    page = page_of(replace(found, file=()))
    assert page.index("Likely cause") < page.index("known defects reproduces")
    assert "Nearest, but does not reproduce them: RoPE pairs" in page and "is off by 0.50" in page
    assert "Nearest" not in page_of(replace(found, file=(), diagnosis=replace(near, nearest=None)))
    page = page_of(replace(found, search=None, diagnosis=None, note=""))
    assert "Likely cause" in page and "First difference" not in page and "known defects" not in page


def test_causes_that_cannot_be_told_apart_are_all_given(pages: dict[str, Report]) -> None:
    report = pages["located"]
    found, _, _, diagnosis = found_in(report)
    first = replace(diagnosis.findings[0], cause="one cause", scope="only in layer 2")
    others = (replace(first, cause="another cause"), replace(first, cause="a worse one", rms=100 * first.rms))
    page = to_html(replace(report, explanation=replace(found, diagnosis=replace(diagnosis, findings=(first, *others)))))
    assert "These cannot be told apart on the given tokens:" in page
    assert "One cause, only in layer 2." in page and "Another cause, only in layer 2." in page
    assert "worse one" not in page and "cannot be told apart" not in to_html(report)


@pytest.mark.parametrize("kind", ["pass", "located"])
def test_internal_names_are_not_shown(pages: dict[str, Report], kind: str) -> None:
    report = pages[kind]
    if kind == "located":
        found, _, _, diagnosis = found_in(report)
        small = replace(diagnosis, too_small=("eps_1e-06", "heads_viewed"))
        report = replace(report, explanation=replace(found, diagnosis=small))
    page = to_html(report)
    names = {*TABLE, *(d.name for d in catalogue(EVERYTHING, position=3)), *LABELS} - {"mask", "embedding"}
    shown = " ".join(text for texts in read(page).text.values() for text in texts)
    titles = " ".join(str(value) for _, attributes in read(page).elements for value in attributes.values())
    # `q_proj` and its like are the checkpoint's names, and a word such as `head` is a site's as well as English.
    known = {name for name in names if "_" in name and not name.endswith(("_proj", "_bias_dropped", "layernorm"))}
    assert not [name for name in known if name in shown or name in titles]
    assert kind == "pass" or "norm epsilon 1e-06, heads split without a transpose" in page


def test_the_map_shows_each_value_that_leaves_the_floor(pages: dict[str, Report]) -> None:
    found, search, place, _ = found_in(pages["located"])
    later = replace(search.rows[0], call=range(14, 15))  # of another call, and not shown
    report = replace(pages["located"], explanation=replace(found, search=replace(search, rows=(*search.rows, later))))
    cells = [
        str(attributes["class"]).split()
        for tag, attributes in read(to_html(report)).elements
        if tag == "td" and "cell" in str(attributes.get("class", ""))
    ]
    here = [row for row in search.rows if row.call.start == place.call]
    assert len(cells) == len(here) == len(search.rows)
    outside = [bool(set(cell) & {"o1", "o2", "o3", "o4"}) for cell in cells]
    assert sum(outside) == sum(row.outside for row in here) > 0
    assert sum("first" in cell for cell in cells) == 1


def marks(page: str, kind: str) -> int:
    """Dots of a kind in the plot of positions."""
    plot = page.split('<div class="panels">')[1].split("</figure>")[0]
    return sum(path.count("h0") for path in re.findall(rf'<path class="{kind}" d="([^"]*)"', plot))


def along(report: Report) -> list[tuple[CheckResult, StretchFigures]]:
    """The checks on the judged sequence, and what they measured."""
    return [(result, result.stretch) for result in report.checks if result.check.along and result.stretch]


@pytest.mark.parametrize("kind", KINDS[:4])
def test_positions_outside_the_limit_are_marked(pages: dict[str, Report], kind: str) -> None:
    report = pages[kind]
    columns = report.positions
    assert columns is not None
    wrong = {p for _, stretch in along(report) for p in stretch.disagreements}
    expected = 0
    for position, error, floor in zip(columns.position, columns.max, columns.max_floor, strict=True):
        too_large = error != error or error > MAX_FACTOR.value * floor
        expected += too_large or position in wrong
    assert marks(to_html(report), "dot bad") == expected
    assert (expected > 0) is (kind in ("located", "nan"))


def test_the_floor_of_the_plot_is_that_of_the_verdict(passed: Report) -> None:
    columns = passed.positions
    assert columns is not None and len(along(passed)) == 3
    for _, stretch in along(passed):
        worst = columns.position.index(stretch.worst_position)
        assert columns.max[worst] / columns.max_floor[worst] == pytest.approx(stretch.max_ratio)


def with_tokens(report: Report, **lists: dict[str, list[int]]) -> Report:
    """Other ties and disagreements of checks; none of any other check."""
    checks = []
    for result in report.checks:
        if result.stretch:
            told: dict[str, Any] = {"ties": [], "disagreements": [], **lists.get(result.name, {})}
            result = replace(result, figures=replace(result.stretch, **told))
        checks.append(result)
    return replace(report, checks=tuple(checks))


def test_ties_and_other_tokens_are_listed(pages: dict[str, Report]) -> None:
    report = pages["pass"]
    assert "likeliest token is the reference’s" in to_html(with_tokens(report))
    report = with_tokens(report, decode={"ties": [35], "disagreements": [40]}, batch={"ties": [3, 5]})
    columns = copy.deepcopy(report.positions)
    assert columns is not None and columns.top1 and columns.reference_top1 and columns.margin
    row = columns.position.index(35)
    columns.reference_top1[row], columns.top1[row], columns.margin[row] = 71, 17, 1.25e-5
    page = to_html(replace(report, positions=columns))
    numbers = [f'<td class="number">{cell}</td>' for cell in ("35", "71", "17", figure(1.25e-5))]
    assert "".join(numbers) in page and '<td class="listed" colspan="5">3, 5</td>' in page
    assert marks(page, "ring") == 1 and marks(page, "dot bad") == 1
    assert "1</dd>" in page and "3\u00a0ties" in page


def test_text_of_the_report_cannot_become_markup(pages: dict[str, Report]) -> None:
    hostile = "<script>alert(1)</script><img src=x onerror='alert(2)'>\"&"
    kept = ("backend", "site", "instead")  # names of ours, by which others are looked up

    def spoil_text(value: Any, key: str = "") -> Any:
        if isinstance(value, StrEnum) or key in kept:
            return value
        if is_dataclass(value) and not isinstance(value, type):
            told = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
            return replace(value, **{name: spoil_text(item, name) for name, item in told.items()})
        if isinstance(value, dict):
            return {k: spoil_text(v, k) for k, v in value.items()}
        if isinstance(value, Skipped):
            return Skipped(*map(spoil_text, value))
        if isinstance(value, list | tuple):
            return type(value)(spoil_text(item, key) for item in value)
        return f"{value}{hostile}" if isinstance(value, str) else value

    for report in pages.values():
        page = to_html(spoil_text(report))
        assert page.count("&lt;script&gt;alert(1)") > 5
        reader = read(page)
        assert not {"script", "img"} & {tag for tag, _ in reader.elements}
        assert not any(name.startswith("on") for _, attributes in reader.elements for name in attributes)


def test_numbers() -> None:
    assert [figure(v) for v in (0, 0.0123, 1.5, 24.06, 1340, -0.5)] == ["0", "0.012", "1.5", "24", "1,300", "−0.50"]
    assert [figure(v) for v in (8.4e-6, 9.96e-6, 123456)] == [
        "8.4\u202f×\u202f10⁻⁶",
        "1.0\u202f×\u202f10⁻⁵",
        "1.2\u202f×\u202f10⁵",
    ]
    nan, inf = float("nan"), float("inf")
    assert [figure(v) for v in (nan, inf, -inf)] == ["NaN", "∞", "−∞"]
    assert [ratio(v) for v in (0.815, 24.06, 1340.4, nan)] == ["0.81", "24.1", "1,340", "NaN"]
    assert [number(v) for v in (0.085, 1.4e-7, nan)] == ["0.085", "1.4e-7", "nan"]
    assert number(50748.0, 3) == "5.07e4"


def test_a_sentence_begins_with_a_capital_and_a_name_stays_a_name() -> None:
    assert capital("prefill of 3 tokens") == "Prefill of 3 tokens"
    assert [capital(name) for name in ("model.norm.weight differs", "q_proj: none")] == [
        "model.norm.weight differs",
        "q_proj: none",
    ]
    assert capital("") == "" and capital("none. Two") == "None. Two"


def test_write_report(passed: Report, tmp_path: Path) -> None:
    names = write_report(passed, tmp_path / "a")
    assert names == write_report(passed, tmp_path / "b") == ["report.json", "report.md", "report.html"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert json.loads((tmp_path / "a/report.json").read_text(encoding="utf-8")) == passed.to_json()
    assert (tmp_path / "a/report.html").read_text(encoding="utf-8") == to_html(passed) + MARK


# Looks at pages in frames of two widths and writes down what it sees.
PROBE = """<!DOCTYPE html><meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>probe</title>
<body></body><script>
const numbers = text => (text.match(/[\\d.]+/g) || []).map(Number);
function rgba(text) {
  const [r, g, b, a = 1] = numbers(text.replace("color(srgb", ""));
  return text.startsWith("color(srgb") ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
}
function luminance(color) {
  const [r, g, b] = color.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
}
function contrast(view, element) {
  let after = element;
  while (after && rgba(view.getComputedStyle(after).backgroundColor)[3] === 0) after = after.parentElement;
  const pair = [view.getComputedStyle(element).color, after ? view.getComputedStyle(after).backgroundColor : ""];
  const [low, high] = pair.map(rgba).map(luminance).sort((a, b) => a - b);
  return (high + .05) / (low + .05);
}
function look(frame) {
  const view = frame.contentWindow, page = frame.contentDocument, root = page.documentElement;
  const verdict = page.getElementById("verdict"), box = verdict.getBoundingClientRect();
  const seen = page.elementFromPoint(box.right - 8, box.top + box.height / 2);
  const said = [...page.querySelectorAll("body *")].filter(
    e => !e.closest("svg, .hidden") && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
  const faint = said.map(e => [contrast(view, e), e.className + ": " + e.textContent.slice(0, 40)]);
  return {
    page: frame.title, width: frame.width, text: verdict.textContent,
    size: parseFloat(view.getComputedStyle(verdict).fontSize),
    inView: box.top >= 0 && box.bottom <= view.innerHeight && box.right <= view.innerWidth,
    onTop: verdict.contains(seen) || (seen && seen.contains(verdict)) || false,
    contrast: contrast(view, verdict), faintest: faint.sort((a, b) => a[0] - b[0])[0], texts: said.length,
    overflow: root.scrollWidth - root.clientWidth, resources: view.performance.getEntriesByType("resource").length,
    paper: view.getComputedStyle(page.body).backgroundColor,
    plots: [...page.querySelectorAll("svg[role=img]")].map(e => [e.clientWidth, e.clientHeight]),
  };
}
addEventListener("load", () => {
  const report = [...document.querySelectorAll("iframe")].map(look);
  document.body.textContent = JSON.stringify(report);
});
"""


def probe(pages: dict[str, Report], folder: Path, *, dark: bool) -> list[dict[str, Any]]:
    """What the browser shows of each page on a desktop and on a phone."""
    frames = []
    for i, (name, report) in enumerate(pages.items()):
        (folder / f"{i}.html").write_text(to_html(report), encoding="utf-8")
        for width, height in ((1280, 800), (360, 640)):
            frames.append(f'<iframe title="{name}" src="{i}.html" width="{width}" height="{height}"></iframe>')
    wall = folder / "wall.html"
    wall.write_text(PROBE.replace("<body>", "<body>" + "".join(frames)) + "</script>", encoding="utf-8")
    scratch = folder / "scratch"
    scratch.mkdir()
    seen = visit(wall, scratch, "--allow-file-access-from-files", "--window-size=1400,9000", dark=dark)
    assert (seen.console, seen.requests) == ([], [])
    body = re.search(r"<body>(.*)</body>", seen.document, re.DOTALL)
    assert body is not None
    shown: list[dict[str, Any]] = json.loads(html.unescape(body[1]))
    return shown


@pytest.mark.parametrize("dark", [False, True])
def test_verdict_and_text_are_legible_in_a_browser(pages: dict[str, Report], tmp_path: Path, dark: bool) -> None:
    shown = probe(pages, tmp_path, dark=dark)
    assert len(shown) == 2 * len(pages)
    for frame in shown:
        assert frame["text"] == pages[frame["page"]].verdict.capitalize()
        assert frame["size"] >= 48 and frame["inView"] and frame["onTop"], frame
        assert frame["contrast"] >= 4.5 and frame["faintest"][0] >= 4.5, frame
        assert frame["texts"] > 40 and frame["overflow"] == 0 and frame["resources"] == 0, frame
        assert all(width > 40 and height > 100 for width, height in frame["plots"]), frame
        assert bool(frame["plots"]) is (frame["page"] != "no walk")
        (red, *_) = map(float, re.findall(r"[\d.]+", frame["paper"]))
        assert (red < 64) is dark


def test_the_browser_is_quiet_and_asks_for_nothing(pages: dict[str, Report], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(to_html(pages["located"]), encoding="utf-8")
    seen = visit(page, tmp_path)
    assert (seen.console, seen.requests) == ([], [])
    assert '<h1 id="verdict">' in seen.document and "RoPE pairs neighbouring" in seen.document


@pytest.mark.parametrize("allowed", [False, True])
def test_what_the_browser_would_complain_about_is_seen(pages: dict[str, Report], tmp_path: Path, allowed: bool) -> None:
    """That the test above can fail, and that the page's policy stops what must not be there."""
    intruder = "<script>console.error('intruder')</script><img alt='' src='http://intruder.invalid/x.png'>"
    text = to_html(pages["pass"]).replace("</main>", intruder + "</main>")
    if allowed:
        text = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", text)
    page = tmp_path / "report.html"
    page.write_text(text, encoding="utf-8")
    seen = visit(page, tmp_path)
    assert any(line.startswith('"intruder"') for line in seen.console) is allowed
    assert any("Content Security Policy" in line for line in seen.console) is not allowed
    assert seen.requests == (["http://intruder.invalid/x.png"] if allowed else [])
