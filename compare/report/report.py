"""The outcome of a judgement as a record, as `report.json`, and the exit code it stands for.

`report.json` holds no time and no path, so that the same inputs and versions give the same bytes. Its schema:

- `schema_version`: 1; a reader refuses what it does not know.
- `verdict`: `pass`, `fail` or `not judged`; `summary`: the verdict in a sentence.
- `notes`: sentences about what was judged that do not bear on the verdict, such as a file that was changed.
- `artifact`: `backend`, `precision`, `max_sequence_length`, `headless`, `last_logits_only`, `model_type`, and
  `arithmetic` (`is_target`, `note`); of another tool's file also `convention`, how it is called; of one that gives
  embeddings `embedding` (`pooling`, `normalized`).
- `tokens`: `origin`, `count`, and the stretches `prefill`, `decode`, `last`.
- `checks`: for each `name`, `kind` (of `check.Kind`), `verdict`, `message` and `figures`: the members of the record
  beside the check, and of `figures.StretchFigures` for one against the noise floor.
- `skipped`: `name` and `reason` of the checks that do not apply to this artifact; `left_out`: names of those that were
  not asked for.
- `weight_rounding`: `rms`, `max`, `relative_l2` of a float64 run on the rounded weights, or null where none is rounded.
- `quantising_cost`: null where it was not asked for, or the members of `quantising_cost.QuantisingCost`: `origin`,
  `tokens`, `window`, `perplexity` (the checkpoint's), `max_kl` where there is a limit, and `runs`, for each `run`,
  `kl_mean`, `kl_high` (the 99th percentile), `perplexity` and `agreement`. KL is in nats. `kinds` has for each `kind`
  of matrices `kl_mean`, with these alone quantised, and `errors`, for each `layer` (null where there is none) the
  `error`: root mean square of what its values lost over that of the values.
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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from blockexport.compare.core.check import CheckResult, Kind, Verdict
from blockexport.compare.core.figures import Figures
from blockexport.compare.core.quantising_cost import QuantisingCost
from blockexport.compare.core.tolerances import TABLE
from blockexport.compare.report.report_explanation import explanation_json
from blockexport.export.bundle.embedding import EmbeddingRecord
from blockexport.export.bundle.golden_file import GoldenVectors
from blockexport.models.exit_codes import ExitCode
from blockexport.models.precision import Precision
from blockexport.models.wording import plural
from blockexport.runtime.backends import Arithmetic, backend_named

if TYPE_CHECKING:
    from blockexport.compare.explain.explanation import Explanation

SCHEMA_VERSION = 1
REPORT_MARKDOWN = "report.md"
REPORT_HTML = "report.html"

_EXIT_CODES = {Verdict.PASS: ExitCode.GOOD, Verdict.FAIL: ExitCode.BAD, Verdict.NOT_JUDGED: ExitCode.NOT_JUDGED}


@dataclass(frozen=True)
class Artifact(Figures):
    """What was judged, and what ran it."""

    backend: str
    precision: Precision
    max_sequence_length: int
    headless: bool
    last_logits_only: bool
    model_type: str
    arithmetic: Arithmetic
    convention: str | None = None
    embedding: EmbeddingRecord | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; whether the backend can judge is not told, since it did."""
        arithmetic = {"is_target": self.arithmetic.is_target, "note": self.arithmetic.note}
        return {**super().to_json(), "precision": str(self.precision), "arithmetic": arithmetic}


@dataclass(frozen=True)
class Stretches(Figures):
    """The judged tokens: where they came from, how many, and the stretches they were given in."""

    origin: str
    count: int
    prefill: int
    decode: int
    last: int


@dataclass(frozen=True)
class RoundingCost(Figures):
    """What rounding the weights costs, in a float64 run."""

    rms: float
    max: float
    relative_l2: float


@dataclass(frozen=True)
class Positions(Figures):
    """Parallel lists over the judged positions; the last three are None for hidden states."""

    position: list[int]
    rms: list[float]
    rms_floor: list[float]
    max: list[float]
    max_floor: list[float]
    kl: list[float]
    top1: list[int] | None = None
    reference_top1: list[int] | None = None
    margin: list[float] | None = None


class Skipped(NamedTuple):
    """A check that does not apply to this artifact."""

    name: str
    reason: str


@dataclass(frozen=True)
class Report:
    """A whole judgement; the members are those of the schema above."""

    artifact: Artifact
    tokens: Stretches
    checks: tuple[CheckResult, ...]
    skipped: tuple[Skipped, ...]
    weight_rounding: RoundingCost | None
    positions: Positions | None  # where a check has looked along the judged sequence
    versions: Mapping[str, str]
    golden: GoldenVectors | None = None  # of an artifact that passed; a file of its own, not part of report.json
    explanation: Explanation | None = None  # of a difference, where one was looked into
    notes: tuple[str, ...] = ()  # sentences without full stop
    left_out: tuple[str, ...] = ()  # names of checks that were not asked for
    quantising_cost: QuantisingCost | None = None  # a measurement; it bears on the verdict by a limit alone

    @property
    def verdict(self) -> Verdict:
        """Fail if any check failed or quantising costs more than was allowed, else not judged if any check could not
        be, or none was run."""
        verdicts = {result.verdict for result in self.checks}
        if Verdict.FAIL in verdicts or self._costs_too_much:
            return Verdict.FAIL
        return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.NOT_JUDGED

    @property
    def exit_code(self) -> ExitCode:
        """What a command that asked for the judgement ends with."""
        return _EXIT_CODES[self.verdict]

    @property
    def summary(self) -> str:
        """The verdict in a sentence."""
        decisive = [result for result in self.checks if result.verdict is self.verdict]
        names = ", ".join(result.name for result in decisive)
        of_the_model = [result.message for result in decisive if result.check.kind is Kind.MODEL]
        if self.verdict is Verdict.FAIL:
            if of_the_model:
                return of_the_model[0]
            if not decisive:
                return f"{self._what} is too far from the checkpoint: {self._costs_too_much}"
            ran = any(result.check.kind.runs_artifact for result in decisive)
            differs = f"differs from {self._other}" if ran else "is not what was asked for"
            also = f"; {self._costs_too_much}" if self._costs_too_much else ""
            return f"{self._what} {differs}: {names} failed{also}"
        if self.verdict is Verdict.NOT_JUDGED:
            why = (*of_the_model, names or "no check applies")[0]
            return f"{self._what} could not be judged: {why}"
        proven = self._proven
        return proven if self.artifact.arithmetic.is_target else f"{proven}; the arithmetic is not the target's"

    @property
    def _costs_too_much(self) -> str:
        """A clause on what quantising costs, where that is more than was allowed; empty elsewhere."""
        cost = self.quantising_cost
        if cost is None or not cost.too_high:
            return ""
        worst = max(cost.too_high, key=lambda run: math.inf if math.isnan(run.kl_mean) else run.kl_mean)
        return f"quantising costs a mean KL of {worst.kl_mean:.3g} nats ({worst.run}), and {cost.max_kl:g} were allowed"

    @property
    def _is_eager(self) -> bool:
        return backend_named(self.artifact.backend).is_eager

    @property
    def _what(self) -> str:
        if self._is_eager:
            return f"eager PyTorch in {self.artifact.precision}, called with a cache,"
        return f"{self.artifact.precision} in {self.artifact.backend}"

    @property
    def _other(self) -> str:
        return "the float64 reference" if self._is_eager else "eager PyTorch"

    @property
    def _proven(self) -> str:
        """What the checks that ran have shown: equality as far as they held outputs against the reference."""
        ran = [result.name for result in self.checks]
        equal = f"{self._what} equals {self._other} within the noise of its precision"
        if not self.left_out:
            return f"{equal} ({plural(len(ran), 'check')})"
        names = f"{', '.join(ran[:-1])} and {ran[-1]}" if len(ran) > 1 else ran[0]
        only = f"only {names} of {len(ran) + len(self.skipped) + len(self.left_out)} checks ran"
        if any(result.check.kind is Kind.NUMERICAL for result in self.checks):
            return f"{equal} as far as was asked ({only})"
        return f"{self._what} was not compared with {self._other} ({only})"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values by the schema above."""
        data = {
            "schema_version": SCHEMA_VERSION,
            "verdict": str(self.verdict),
            "summary": self.summary,
            "notes": self.notes,
            "artifact": self.artifact.to_json(),
            "tokens": self.tokens.to_json(),
            "checks": [result.to_json() for result in self.checks],
            "skipped": [skipped._asdict() for skipped in self.skipped],
            "left_out": self.left_out,
            "weight_rounding": None if self.weight_rounding is None else self.weight_rounding.to_json(),
            "quantising_cost": None if self.quantising_cost is None else self.quantising_cost.to_json(),
            "positions": {} if self.positions is None else self.positions.to_json(),
            "tolerances": {name: {"value": t.value, "evidence": t.evidence} for name, t in TABLE.items()},
            "versions": self.versions,
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
