"""The report's verdict from the verdicts of its checks, and figures that JSON can hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockexport.compare.check import CheckResult, Verdict
from blockexport.compare.report import Report
from blockexport.compare.report_files import write_report

PASS, FAIL, NOT_JUDGED = Verdict.PASS, Verdict.FAIL, Verdict.NOT_JUDGED


def report_of(*verdicts: Verdict, figures: dict[str, object] | None = None) -> Report:
    checks = tuple(CheckResult(f"check-{i}", v, f"message {i}", figures or {}) for i, v in enumerate(verdicts))
    artifact = {
        "backend": "onnxruntime",
        "precision": "fp32",
        "max_sequence_length": 64,
        "headless": False,
        "last_logits_only": False,
        "model_type": "llama",
        "arithmetic": {"is_target": True, "note": "every operator in float32"},
    }
    tokens = {"origin": "random ids, seed 0", "count": 64, "prefill": 32, "decode": 24, "last": 8}
    return Report(artifact, tokens, checks, (), None, {}, {"torch": "2"})


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


def test_json_holds_what_json_lacks_as_text(tmp_path: Path) -> None:
    figures: dict[str, object] = {"a": float("nan"), "b": [float("inf"), float("-inf")], "c": 1 / 3, "d": (2, True)}
    write_report(report_of(FAIL, figures=figures), tmp_path / "deep" / "er")
    written = json.loads((tmp_path / "deep" / "er" / "report.json").read_text())
    expected = {"a": "NaN", "b": ["Infinity", "-Infinity"], "c": 0.333333, "d": [2, True]}
    assert written["checks"][0]["figures"] == expected
    assert (tmp_path / "deep" / "er" / "report.md").read_text().startswith("# Fail\n")
