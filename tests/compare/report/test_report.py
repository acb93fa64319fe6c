"""The report's verdict from the verdicts of its checks, and figures that JSON can hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from blockexport.compare.checks.catalogue import choose_checks
from blockexport.compare.core.check import Check, CheckResult, Kind, Outcome, Verdict
from blockexport.compare.core.figures import Figures, StretchFigures
from blockexport.compare.core.tolerances import MAX_FACTOR, TABLE
from blockexport.compare.report.report import Artifact, Report, RoundingCost, Stretches
from blockexport.compare.report.report_files import write_report
from blockexport.compare.report.report_table import render_table
from blockexport.compare.report.report_text import HEADINGS
from blockexport.models.precision import Precision
from blockexport.runtime.backends import Arithmetic

PASS, FAIL, NOT_JUDGED = Verdict.PASS, Verdict.FAIL, Verdict.NOT_JUDGED


def check_named(name: str, kind: Kind = Kind.NUMERICAL) -> Check:
    return Check(name, kind, lambda context: Outcome("", 0))


def report_of(*verdicts: Verdict, figures: Figures | None = None) -> Report:
    checks = tuple(CheckResult(check_named(f"check-{i}"), v, f"message {i}", figures) for i, v in enumerate(verdicts))
    arithmetic = Arithmetic(is_target=True, can_judge=True, note="every operator in float32")
    artifact = Artifact("onnxruntime", Precision.FP32, 64, False, False, "llama", arithmetic)
    tokens = Stretches("random ids, seed 0", 64, 32, 24, 8)
    return Report(artifact, tokens, checks, (), None, None, {"torch": "2"})


def result_of(name: str, verdict: Verdict = PASS) -> CheckResult:
    return CheckResult(choose_checks((name,))[0], verdict, "")


@pytest.mark.parametrize(
    ("verdicts", "expected", "code"),
    [
        ((PASS, PASS), PASS, 0),
        ((PASS, FAIL, NOT_JUDGED), FAIL, 1),
        ((PASS, NOT_JUDGED), NOT_JUDGED, 3),
        ((), NOT_JUDGED, 3),
    ],
)
def test_the_verdict_is_that_of_the_worst_check(verdicts: tuple[Verdict, ...], expected: Verdict, code: int) -> None:
    report = report_of(*verdicts)
    assert (report.verdict, report.exit_code) == (expected, code)
    named = [f"check-{i}" for i, v in enumerate(verdicts) if v is expected and expected is not PASS]
    assert all(name in report.summary for name in named)


def summary(ran: Sequence[str], left_out: Sequence[str], backend: str = "onnxruntime") -> str:
    report = report_of()
    checks = tuple(map(result_of, ran))
    artifact = replace(report.artifact, backend=backend)
    return replace(report, checks=checks, left_out=tuple(left_out), artifact=artifact).summary


def test_equality_is_claimed_as_far_as_outputs_were_compared() -> None:
    equal = "fp32 in onnxruntime equals eager PyTorch within the noise of its precision"
    assert summary(["prefill", "decode", "types"], []) == f"{equal} (3 checks)"
    some = summary(["prefill", "decode"], ["types", "batch"])
    assert some == f"{equal} as far as was asked (only prefill and decode of 4 checks ran)"
    none = "fp32 in onnxruntime was not compared with eager PyTorch (only types of 3 checks ran)"
    assert summary(["types"], ["prefill", "decode"]) == none
    for name in ("parameters", "types", "constants", "capacity", "determinism", "causality"):
        assert "equals" not in summary([name], ["prefill"])


def test_eager_is_not_said_to_equal_itself() -> None:
    said = summary(["prefill", "decode"], [], "eager")
    assert said.startswith("eager PyTorch in fp32, called with a cache, equals the float64 reference")


def test_a_file_whose_outputs_are_right_is_not_said_to_differ() -> None:
    failed = replace(report_of(), checks=(result_of("parameters", FAIL), result_of("decode")))
    assert failed.summary == "fp32 in onnxruntime is not what was asked for: parameters failed"
    worse = replace(failed, checks=(*failed.checks, result_of("batch", FAIL)))
    assert worse.summary == "fp32 in onnxruntime differs from eager PyTorch: parameters, batch failed"


FIGURES = StretchFigures(
    positions=64, first_position=0, last_position=4095, rms=1.23e-5, rms_floor=2.3e-6, rms_ratio=8.3e5, rms_limit=1.5,
    max=1.2e-10, max_floor=9.9e-9, max_ratio=2.02e6, max_limit=8.0, worst_position=4095, relative_l2=0.0, kl_mean=0.0,
    not_finite=[], ties=[1], disagreements=[],
)  # fmt: skip


def test_the_table_fits_80_columns_whatever_the_figures() -> None:
    report = report_of(FAIL, NOT_JUDGED, figures=FIGURES)
    checks = tuple(replace(result, check=check_named("determinism"), message="") for result in report.checks)
    report = replace(report, checks=checks, weight_rounding=RoundingCost(2.3e-12, 1.0e-11, 1.0))
    console = Console(width=80, record=True, file=StringIO())
    console.print(render_table(report))
    lines = console.export_text().splitlines()
    assert any(line.split() == list(HEADINGS) for line in lines)
    row = next(line for line in lines if line.startswith("determinism fail"))
    assert row.split()[2:] == ["1.2e-5", "2.3e-6", "8.3e5", "1.2e-10", "9.9e-9", "2e6", "4095", "1"]
    assert any("(weights) is what rounding the weights to fp32 costs" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_the_page_lists_limits_in_a_line_each(tmp_path: Path) -> None:
    write_report(report_of(PASS), tmp_path)
    page = (tmp_path / "report.md").read_text()
    limits_of_page = page.split("## Limits")[1]
    assert f"| largest error | {MAX_FACTOR.value:g} |" in limits_of_page
    assert limits_of_page.count("\n| ") == len(TABLE) + 1 and max(map(len, limits_of_page.splitlines())) < 130
    written = json.loads((tmp_path / "report.json").read_text())["tolerances"]
    for name, entry in written.items():
        assert entry["evidence"] == TABLE[name].evidence and entry["evidence"] not in page
        assert "_" not in name or name not in page


@dataclass(frozen=True)
class Odd(Figures):
    a: float
    b: list[float]
    c: float
    d: tuple[int, bool]
    e: None = None


def test_json_holds_what_json_lacks_as_text(tmp_path: Path) -> None:
    inf = float("inf")
    write_report(report_of(FAIL, figures=Odd(float("nan"), [inf, -inf], 1 / 3, (2, True))), tmp_path / "deep" / "er")
    written = json.loads((tmp_path / "deep" / "er" / "report.json").read_text())
    expected = {"a": "NaN", "b": ["Infinity", "-Infinity"], "c": 0.333333, "d": [2, True]}
    assert written["checks"][0]["figures"] == expected
    assert (tmp_path / "deep" / "er" / "report.md").read_text().startswith("# Fail\n")
