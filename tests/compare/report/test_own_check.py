"""A check that only exists here: one line in the catalogue, and all that shows checks shows it for what it is."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from io import StringIO

import pytest
from rich.console import Console

from blockexport.compare.checks import catalogue
from blockexport.compare.checks.check_cached_path import decode
from blockexport.compare.core.check import Check, FailingCalls, Kind, Outcome, Verdict
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.figures import Figures, StretchFigures
from blockexport.compare.core.judge_positions import extended
from blockexport.compare.explain.explain import explain
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.report.report import Report
from blockexport.compare.report.report_html import to_html
from blockexport.compare.report.report_markdown import to_markdown
from blockexport.compare.report.report_table import render_table
from blockexport.runtime.eager import EagerDecoder
from tests.compare.broken import Broken, noise_at
from tests.compare.judged import judge
from tests.compare.memory_checkpoint import MemoryCheckpoint, eager_model
from tests.support import REPOSITORY
from tests.test_layers import PACKAGES, sources

NAME = "decode-again"
OPTIONS = JudgeOptions(backend="eager", decode_steps=12, prefill=32, checks=(NAME,))


@dataclass(frozen=True)
class AgainFigures(StretchFigures):
    again: int


def _run(context: CheckContext) -> Outcome:
    outcome = extended(decode.function(context), AgainFigures, again=7)
    assert isinstance(outcome.figures, AgainFigures)
    return replace(outcome, figures=replace(outcome.figures, ties=[35]))


def _calls(context: CheckContext, figures: Figures | None) -> FailingCalls:
    assert isinstance(figures, AgainFigures)
    return FailingCalls(context.ids_S[:30], [range(30)], "half the prompt", "half the prompt stays within the floor")


def judged(
    tiny: MemoryCheckpoint, monkeypatch: pytest.MonkeyPatch, entry: Check, at: int = 1000, size: float = 0.0
) -> Report:
    monkeypatch.setattr(catalogue, "ALL_CHECKS", (*catalogue.ALL_CHECKS, entry))
    decoder: EagerDecoder = Broken(eager_model(tiny), 64, noise_at(at, size))
    options = replace(OPTIONS, explain=lambda context, results: explain(context, results, None))
    return judge(decoder, tiny, options)


def test_it_is_in_the_table_the_page_and_the_json(tiny: MemoryCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    report = judged(tiny, monkeypatch, Check(NAME, Kind.NUMERICAL, _run, along=True))
    assert report.verdict is Verdict.PASS and "equals the float64 reference" in report.summary
    (told,) = report.to_json()["checks"]
    assert (told["name"], told["kind"], told["figures"]["again"]) == (NAME, "numerical", 7)
    assert report.to_json()["positions"]["position"][-1] == 43 and NAME not in report.to_json()["left_out"]
    console = Console(width=80, record=True, file=StringIO())
    console.print(render_table(report))
    (row,) = [line for line in console.export_text().splitlines() if line.startswith(NAME)]
    assert len(row.split()) == 10
    page = to_html(report)
    row = page.split(f'<th scope="row">{NAME}</th>')[1].split("</tbody>")[0]
    assert row.count('class="measure') == 2 and '<td class="number">1</td>' in row
    assert '<path class="ring"' in page and "top-1 tied" in page  # its tie, in the plot
    assert f'<tr class="pass"><th scope="row">{NAME}</th>\n<td class="number">35</td>' in page  # and in the table
    assert f"| {NAME} | pass |" in to_markdown(report)


def test_only_what_is_numerical_proves_equality(tiny: MemoryCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    report = judged(tiny, monkeypatch, Check(NAME, Kind.BEHAVIOUR, _run))
    assert report.verdict is Verdict.PASS and "was not compared with" in report.summary
    assert report.positions is None and report.golden is None and report.to_json()["positions"] == {}
    assert report.to_json()["checks"][0]["kind"] == "behaviour"
    page = to_html(report)
    assert '<path class="ring"' not in page and '<td class="listed" colspan="5">35</td>' in page


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Kind.NUMERICAL, "differs from"), (Kind.CONTENT, "is not what was asked for"), (Kind.MODEL, "of 12 decode steps")],
)
def test_its_kind_words_its_failure(
    tiny: MemoryCheckpoint, monkeypatch: pytest.MonkeyPatch, kind: Kind, said: str
) -> None:
    def fails(context: CheckContext) -> Outcome:
        return Outcome("", 1, ["one of 12 decode steps is wrong"])

    report = judged(tiny, monkeypatch, Check(NAME, kind, fails, unlocated="it is made up"))
    assert report.verdict is Verdict.FAIL and said in report.summary
    assert report.explanation is not None
    content = kind is Kind.CONTENT
    assert report.explanation.file == (("one of 12 decode steps is wrong",) if content else ())
    assert report.explanation.remarks == (() if content else (f"{NAME}: not located; it is made up",))


def test_its_calls_are_looked_into(tiny: MemoryCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Check(NAME, Kind.NUMERICAL, _run, calls=_calls)
    report = judged(tiny, monkeypatch, entry, at=40, size=3.0)
    assert report.verdict is Verdict.FAIL and report.explanation is not None
    assert report.explanation.remarks == (f"{NAME}: not located; half the prompt stays within the floor",)


def test_no_product_file_reads_figures_by_a_string_or_looks_into_a_dict_of_attributes() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}"
        for package in PACKAGES
        for path in sources(package)
        for line in by_string(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def by_string(source: str) -> list[int]:
    """Lines that take a member of `figures` by a string, or use `__dict__`."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Subscript(value=value, slice=ast.Constant(value=str())) if _is_figures(value):
                lines.append(node.lineno)
            case ast.Call(func=ast.Attribute(value=value, attr="get")) if _is_figures(value):
                lines.append(node.lineno)
            case ast.Compare(comparators=[*_, value]) if _is_figures(value) and isinstance(node.ops[-1], ast.In):
                lines.append(node.lineno)
            case ast.Attribute(attr="__dict__"):
                lines.append(node.lineno)
    return lines


def _is_figures(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name == "figures"


@pytest.mark.parametrize(
    "line",
    ['check.figures["rms"]', 'figures["rms"]', 'result.figures.get("rms")', '"rms" in figures', "context.__dict__"],
)
def test_each_way_of_doing_so_is_seen(line: str) -> None:
    assert by_string(f"x = 1\ny = {line}\n") == [2] and by_string("result.figures.rms\nfigures[0]\n") == []
