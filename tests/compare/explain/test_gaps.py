"""Defects that act between the places the other checks look at, built into real ONNX files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from blockexport.compare.core.check import Verdict
from blockexport.compare.core.position_plan import make_plan
from blockexport.compare.judged_bundle import bundle_options
from blockexport.compare.report.report import Report
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.runtime.open import open_decoder
from tests.compare.judged import judge
from tests.exported import EVERYTHING, export, gainful

M = 512
CONFIG = replace(EVERYTHING, max_position_embeddings=M, num_hidden_layers=2, layer_types=EVERYTHING.layer_types[:2])

Change = Callable[[onnx.ModelProto], None]


@pytest.fixture(scope="module")
def source() -> Checkpoint:
    return gainful(CONFIG)


@pytest.fixture(scope="module")
def bundle(source: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gaps")
    export(source, folder, slots=M)
    return folder


def judged(bundle: Path, source: Checkpoint, change: Change, *, explain: bool = False) -> Report:
    """The bundle with another graph, on every check that runs it; the file is put back."""
    path = bundle / "model.onnx"
    sound = path.read_bytes()
    model = onnx.load(path, load_external_data=False)
    change(model)
    onnx.save(model, path)
    try:
        options = bundle_options(bundle)
        options = replace(options, weights=None, graph=None, explain=options.explain if explain else None)
        return judge(open_decoder(bundle, "onnxruntime", threads=1, verify="nothing"), source, options)
    finally:
        path.write_bytes(sound)


def failed(report: Report) -> set[str]:
    return {result.name for result in report.checks if result.verdict is Verdict.FAIL}


def message(report: Report, name: str) -> str:
    return next(result.message for result in report.checks if result.name == name)


def logits_where(first: int, last: int, axis: int, sizes: range, value: float) -> Change:
    """`value` is added to the logits of positions `first` to `last` of calls with so many rows (axis 0) or tokens."""

    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = ["sound" if name == "logits" else name for name in names]
        constants = {"first": first, "last": last, "least": [sizes.start], "most": [sizes.stop - 1], "axis": [2]}
        for name, number in constants.items():
            model.graph.initializer.append(numpy_helper.from_array(np.array(number, np.int64), f"gap.{name}"))
        for name, added in (("added", value), ("nothing", 0.0)):
            model.graph.initializer.append(numpy_helper.from_array(np.array(added, np.float32), f"gap.{name}"))
        made = [
            ("GreaterOrEqual", ["position_ids", "gap.first"], "gap.after"),
            ("LessOrEqual", ["position_ids", "gap.last"], "gap.before"),
            ("Shape", ["position_ids"], "gap.shape"),
            ("GreaterOrEqual", ["gap.shape", "gap.least"], "gap.many"),
            ("LessOrEqual", ["gap.shape", "gap.most"], "gap.few"),
            ("And", ["gap.after", "gap.before"], "gap.where"),
            ("And", ["gap.many", "gap.few"], "gap.when"),
            ("And", ["gap.where", "gap.when"], "gap.both"),
            ("Unsqueeze", ["gap.both", "gap.axis"], "gap.wide"),
            ("Where", ["gap.wide", "gap.added", "gap.nothing"], "gap.term"),
            ("Add", ["sound", "gap.term"], "logits"),
        ]
        for kind, inputs, output in made:
            options: dict[str, Any] = {"start": axis, "end": axis + 1} if kind == "Shape" else {}
            model.graph.node.append(helper.make_node(kind, inputs, [output], **options))

    return change


ANY = range(1, M + 1)


def test_the_change_itself_is_harmless(bundle: Path, source: Checkpoint) -> None:
    report = judged(bundle, source, logits_where(0, M, 1, ANY, 0.0))
    assert report.verdict is Verdict.PASS, report.to_json()["checks"]


@pytest.mark.parametrize("positions", [(65, 255), (320, 503), (470, 503), (66, 80)])
def test_single_steps_that_are_wrong_in_a_gap(bundle: Path, source: Checkpoint, positions: tuple[int, int]) -> None:
    report = judged(bundle, source, logits_where(*positions, 1, range(1, 2), 1e-2))
    assert "spread" in failed(report) and failed(report) <= {"spread", "batch", "growth"}, report.to_json()["checks"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_named_wherever_it_is(bundle: Path, source: Checkpoint, value: float) -> None:
    report = judged(bundle, source, logits_where(320, 503, 1, ANY, value))
    assert failed(report) == {"spread", "last-slot", "batch", "determinism"}
    assert "NaN or infinity, first at position 320" in message(report, "spread")
    assert message(report, "last-slot") == "NaN or infinity on the way to the last slots, first at position 320"


def test_a_single_position_that_is_not_finite_in_long_calls(bundle: Path, source: Checkpoint) -> None:
    report = judged(bundle, source, logits_where(400, 400, 1, range(100, M), float("nan")))
    assert failed(report) == {"last-slot", "batch"} and "first at position 400" in message(report, "last-slot")


def test_a_single_position_that_is_not_finite_and_has_no_reference(bundle: Path, source: Checkpoint) -> None:
    plan = make_plan(M)
    judged_ones = {*range(plan.decode_positions.stop), *plan.spread_positions, *plan.last_positions}
    position = next(p for p in range(M) if p not in judged_ones)
    report = judged(bundle, source, logits_where(position, position, 1, range(1, 50), float("nan")))
    assert failed(report) == {"spread"} and f"first at position {position}" in message(report, "spread")


@pytest.mark.parametrize(("first", "rows"), [(0, range(4, 99)), (40, range(2, 99)), (M - 2, range(2, 99))])
def test_rows_that_are_wrong_when_many_or_late(bundle: Path, source: Checkpoint, first: int, rows: range) -> None:
    report = judged(bundle, source, logits_where(first, M, 0, rows, 1e-2))
    assert failed(report) == {"batch"}, report.to_json()["checks"]


def test_a_late_row_that_is_wrong_is_right_alone(bundle: Path, source: Checkpoint) -> None:
    report = judged(bundle, source, logits_where(M - 2, M, 0, range(2, 99), 1e-2), explain=True)
    assert report.explanation is not None
    assert "alone, the row's tokens stay within the floor" in " ".join(report.explanation.sentences)
