"""Rows that are lent to one tenant after the other: right in ONNX Runtime and in the replay, and each way to mix
tenants up is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

from blockexport.compare.checks import check_serving
from blockexport.compare.checks.catalogue import choose_checks
from blockexport.compare.core.check import CheckResult, Verdict
from blockexport.compare.judge import ROW_PROMPT, ROW_STEPS, JudgeOptions
from blockexport.compare.judged_bundle import judge_bundle
from blockexport.models.precision import Precision
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.serving.rows import Rows
from tests.exported import EVERYTHING, export, gainful

SLOTS = 64


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serving") / "bundle"
    export(gainful(EVERYTHING), folder, Precision.FP32, SLOTS)
    return folder


def judged(bundle: Path, backend: str | None = None) -> CheckResult:
    options = JudgeOptions(checks=("serving",))
    return judge_bundle(bundle, options, backend=backend, made_of=gainful(EVERYTHING)).report.checks[0]


@pytest.mark.parametrize("backend", ["onnxruntime", "replay"])
def test_each_tenant_gets_what_it_gets_alone(bundle: Path, backend: str) -> None:
    result = judged(bundle, backend)
    assert result.verdict is Verdict.PASS, result.message
    assert "10 tenants of 3 rows: within the noise floor" in result.message


def test_alone_it_runs_no_long_sequence(bundle: Path) -> None:
    tokens = judge_bundle(bundle, JudgeOptions(checks=("serving",)), made_of=gainful(EVERYTHING)).report.tokens
    assert (tokens.prefill, tokens.decode) == (ROW_PROMPT, ROW_STEPS)


def test_large_models_have_fewer_tenants(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_serving, "LARGE", 1)
    told = list[tuple[str, int, int]]()
    options = JudgeOptions(checks=("serving",))
    judgement = judge_bundle(bundle, options, made_of=gainful(EVERYTHING), progress=lambda *said: told.append(said))
    assert judgement.report.checks[0].message.startswith("5 tenants")  # one of six gave up at once
    shares = [(done, total) for label, done, total in told if label == "serving: token"]
    assert len({total for _, total in shares}) == 1 and shares[-1][0] == shares[-1][1]


def test_in_half_precision_too(tmp_path: Path) -> None:
    export(gainful(EVERYTHING), tmp_path / "bundle", Precision.FP16, SLOTS)
    result = judged(tmp_path / "bundle")
    assert result.verdict is Verdict.PASS, result.message


def test_it_runs_when_it_is_asked_for() -> None:
    assert "serving" not in [one.name for one in choose_checks()]
    assert [one.name for one in choose_checks(("serving", "decode"))] == ["decode", "serving"]


def former_slots_are_seen(patch: pytest.MonkeyPatch) -> None:
    """A row that is given back keeps its length, so that the next tenant goes on behind the former one's slots."""
    take_back = Rows.take_back

    def broken(rows: Rows, row: int, *, spoilt: bool = False) -> None:
        length = int(rows.decoder.lengths_B[row])
        take_back(rows, row, spoilt=spoilt)
        rows.decoder.lengths_B[row] = min(length, 3)

    patch.setattr(Rows, "take_back", broken)


def one_slot_leaks(patch: pytest.MonkeyPatch) -> None:
    """A tenant begins one slot late, so that it sees one of its predecessor's."""
    lend = Rows.lend

    def broken(rows: Rows) -> int | None:
        row = lend(rows)
        if row is not None:
            rows.decoder.lengths_B[row] = 1
        return row

    patch.setattr(Rows, "lend", broken)


def neighbours_position(patch: pytest.MonkeyPatch) -> None:
    """A step takes the length of the row beside it."""
    step = Rows.step

    def broken(rows: Rows, inputs: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        lengths_B = rows.decoder.lengths_B
        rows.decoder.lengths_B = lengths_B.roll(1)
        try:
            return step(rows, inputs)
        finally:
            moved = torch.zeros_like(lengths_B)
            moved[list(inputs)] = 1
            rows.decoder.lengths_B = lengths_B + moved

    patch.setattr(Rows, "step", broken)


def neighbours_slots(patch: pytest.MonkeyPatch) -> None:
    """A chunk is run in the cache of the first rows, whichever it is of."""
    alone = Decoder._alone

    @contextlib.contextmanager
    def broken(decoder: Decoder, rows: range) -> Iterator[None]:
        lengths_B = decoder.lengths_B.clone()
        decoder.lengths_B[: len(rows)] = lengths_B[rows.start : rows.stop]
        with alone(decoder, range(len(rows))):
            yield
        lengths_B[rows.start : rows.stop] = decoder.lengths_B[: len(rows)]
        decoder.lengths_B = lengths_B

    patch.setattr(Decoder, "_alone", broken)


def idle_rows_move_on(patch: pytest.MonkeyPatch) -> None:
    """A row between two that take a step keeps the token that it was given to fill the gap."""
    step = Rows.step

    def broken(rows: Rows, inputs: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        outputs = step(rows, inputs)
        for row in range(min(inputs), max(inputs)):
            if row not in inputs:
                rows.decoder.lengths_B[row] += 1
        return outputs

    patch.setattr(Rows, "step", broken)


DEFECTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    former_slots_are_seen,
    one_slot_leaks,
    neighbours_position,
    neighbours_slots,
    idle_rows_move_on,
]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_tenants_that_are_mixed_up_are_told(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, defect: Callable[[pytest.MonkeyPatch], None]
) -> None:
    defect(monkeypatch)
    result = judged(bundle)
    assert result.verdict is Verdict.FAIL
    assert "tenant" in result.message
