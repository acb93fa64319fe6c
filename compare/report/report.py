"""The outcome of a judgement as a record, as `report.json`, and the exit code it stands for.

`report.json` holds no time and no path, so that the same inputs and versions give the same bytes. Its schema:

- `schema_version`: 1; a reader refuses what it does not know.
- `verdict`: `pass`, `fail` or `not judged`; `summary`: the verdict in a sentence.
- `notes`: sentences about what was judged that do not bear on the verdict, such as a file that was changed.
- `artifact`: `backend`, `precision`, `max_sequence_length`, `headless`, `last_logits_only`, `model_type`, and
  `arithmetic` (`is_target`, `note`); of another tool's file also `convention`, how it is called.
- `tokens`: `origin`, `count`, and the stretches `prefill`, `decode`, `last`.
- `checks`: for each `name`, `verdict`, `message` and `figures`; the figures of a check against the noise floor are
  `rms`, `rms_floor`, `rms_ratio`, `rms_limit`, `max`, `max_floor`, `max_ratio`, `max_limit` (the ratio is the largest
  over the positions), `worst_position`, `relative_l2`, `kl_mean` (nats), and the positions `not_finite`, `ties`,
  `disagreements`.
- `skipped`: `name` and `reason` of the checks that do not apply to this artifact; `left_out`: names of those that were
  not asked for.
- `weight_rounding`: `rms`, `max`, `relative_l2` of a float64 run on the rounded weights, or null where none is rounded.
- `positions`: parallel lists over the judged positions: `position`, `rms`, `rms_floor`, `max`, `max_floor` (what the
  verdict holds `max` against), `kl`; with logits also `top1`, `reference_top1` (token ids) and `margin` (by how much
  the reference prefers its own).
- `explanation`: null, or what was found out about a difference; its schema heads report_explanation.py.
- `tolerances`: every factor with its `value` and `evidence`; `versions`: of the libraries that ran.

Numbers are rounded to 6 significant digits; NaN and infinities, which JSON lacks, are the strings `NaN`, `Infinity`
and `-Infinity`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blockexport.compare.core.check import CheckResult, Verdict
from blockexport.compare.core.tolerances import TABLE
from blockexport.compare.report.report_explanation import explanation_json
from blockexport.export.bundle.golden_file import GoldenVectors
from blockexport.models.exit_codes import ExitCode
from blockexport.runtime.backends import backend_named

if TYPE_CHECKING:
    from blockexport.compare.explain.explain import Explanation

SCHEMA_VERSION = 1
REPORT_JSON = "report.json"
REPORT_MARKDOWN = "report.md"
REPORT_HTML = "report.html"

NUMERICAL = {"prefill", "decode", "chunked", "spread", "last-slot", "batch", "padding", "greedy"}
"""Checks that hold outputs against the reference; the others read the file, or hold outputs against each other."""

STATIC = {"parameters", "constants", "types", "precision"}
"""Checks that do not run the artifact."""

_EXIT_CODES = {Verdict.PASS: ExitCode.GOOD, Verdict.FAIL: ExitCode.BAD, Verdict.NOT_JUDGED: ExitCode.NOT_JUDGED}


@dataclass(frozen=True)
class Report:
    """A whole judgement; the members are those of the schema above."""

    artifact: Mapping[str, Any]
    tokens: Mapping[str, Any]
    checks: tuple[CheckResult, ...]
    skipped: tuple[tuple[str, str], ...]  # name and reason
    weight_rounding: Mapping[str, float] | None
    positions: Mapping[str, Sequence[float]]
    versions: Mapping[str, str]
    golden: GoldenVectors | None = None  # of an artifact that passed; a file of its own, not part of report.json
    explanation: Explanation | None = None  # of a difference, where one was looked into
    notes: tuple[str, ...] = ()  # sentences without full stop
    left_out: tuple[str, ...] = ()  # names of checks that were not asked for

    @property
    def verdict(self) -> Verdict:
        """Fail if any check failed, else not judged if any could not be, or none was run."""
        verdicts = {result.verdict for result in self.checks}
        if Verdict.FAIL in verdicts:
            return Verdict.FAIL
        return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.NOT_JUDGED

    @property
    def exit_code(self) -> ExitCode:
        """What a command that asked for the judgement ends with."""
        return _EXIT_CODES[self.verdict]

    @property
    def summary(self) -> str:
        """The verdict in a sentence."""
        of = {v: [r.name for r in self.checks if r.verdict is v] for v in Verdict}
        if self.verdict is Verdict.FAIL:
            if "precision" in of[Verdict.FAIL]:
                return self._message("precision")
            differs = f"differs from {self._other}" if set(of[Verdict.FAIL]) - STATIC else "is not what was asked for"
            return f"{self._what} {differs}: {', '.join(of[Verdict.FAIL])} failed"
        if self.verdict is Verdict.NOT_JUDGED:
            open_ = ", ".join(of[Verdict.NOT_JUDGED]) or "no check applies"
            if "precision" in of[Verdict.NOT_JUDGED]:
                open_ = self._message("precision")
            return f"{self._what} could not be judged: {open_}"
        proven = self._proven([r.name for r in self.checks])
        return proven if self.artifact["arithmetic"]["is_target"] else f"{proven}; the arithmetic is not the target's"

    def _message(self, name: str) -> str:
        return next(result.message for result in self.checks if result.name == name)

    @property
    def _is_eager(self) -> bool:
        return backend_named(self.artifact["backend"]).is_eager

    @property
    def _what(self) -> str:
        if self._is_eager:
            return f"eager PyTorch in {self.artifact['precision']}, called with a cache,"
        return f"{self.artifact['precision']} in {self.artifact['backend']}"

    @property
    def _other(self) -> str:
        return "the float64 reference" if self._is_eager else "eager PyTorch"

    def _proven(self, ran: list[str]) -> str:
        """What the checks that ran have shown: equality as far as they held outputs against the reference."""
        count = f"{len(ran)} check{'s' if len(ran) > 1 else ''}"
        equal = f"{self._what} equals {self._other} within the noise of its precision"
        if not self.left_out:
            return f"{equal} ({count})"
        names = f"{', '.join(ran[:-1])} and {ran[-1]}" if len(ran) > 1 else ran[0]
        only = f"only {names} of {len(ran) + len(self.skipped) + len(self.left_out)} checks ran"
        if NUMERICAL & set(ran):
            return f"{equal} as far as was asked ({only})"
        return f"{self._what} was not compared with {self._other} ({only})"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values by the schema above."""
        data = {
            "schema_version": SCHEMA_VERSION,
            "verdict": str(self.verdict),
            "summary": self.summary,
            "notes": list(self.notes),
            "artifact": dict(self.artifact),
            "tokens": dict(self.tokens),
            "checks": [
                {"name": r.name, "verdict": str(r.verdict), "message": r.message, "figures": dict(r.figures)}
                for r in self.checks
            ],
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped],
            "left_out": list(self.left_out),
            "weight_rounding": self.weight_rounding,
            "positions": dict(self.positions),
            "tolerances": {name: {"value": t.value, "evidence": t.evidence} for name, t in TABLE.items()},
            "versions": dict(self.versions),
            "explanation": None if self.explanation is None else explanation_json(self.explanation),
        }
        rounded: dict[str, Any] = _rounded(data)
        return rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
