"""The checks of how a decoder is called: chunks, slots, capacity, padding, rows, repetition.

Each is red for a decoder that is wrong in exactly that way, and so are no others than those that can see it too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockexport.compare.core.check import Verdict
from blockexport.compare.core.immovable import has_moved, moved_by, same_bits
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.report.report import Report
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.interface import Interface
from blockexport.models.precision import Precision
from blockexport.runtime.decoder import Foreign
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.open import open_decoder
from tests.compare import broken_calls as calls
from tests.compare.broken import Breaker, Broken
from tests.compare.judged import judge
from tests.compare.memory_checkpoint import eager_model
from tests.exported import EVERYTHING, add_program, export, gainful

M = 64
CHECKS = ("chunked", "slots", "capacity", "padding", "invariance", "determinism")
# Prefill 0 to 31, steps 32 to 43, last slots 56 to 63. `slots` calls 0-15, 16, 17, 18-22, 23; `padding` has 20 tokens,
# 5 of padding and 6 steps; `invariance` rows of 26, 20 and 10 and 3 steps.
OPTIONS = JudgeOptions(backend="eager", decode_steps=12, prefill=32)


def failed(report: Report) -> set[str]:
    return {result.name for result in report.checks if result.verdict is Verdict.FAIL}


def message(report: Report, name: str) -> str:
    return next(result.message for result in report.checks if result.name == name)


def nothing(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    return decoder.sound(inputs, position_ids_BS)


DEFECTS: list[tuple[type[Broken], Breaker, set[str], str, str]] = [
    (Broken, calls.chunk_sees_only_itself, {"chunked", "slots", "last-slot"}, "chunked", "another top-1 token"),
    (
        Broken,
        calls.rewrites(2, lambda start, stop: start - 1),
        {"slots", "capacity"},
        "slots",
        "writing slots 16 to 16 changes earlier slots of the values of layer 2",
    ),
    (
        Broken,
        calls.rewrites(1, lambda start, stop: stop + 9),
        {"slots"},
        "slots",
        "writing slots 0 to 15 changes later slots of the values of layer 1",
    ),
    (Broken, calls.rewrites(1, lambda start, stop: M - 1), {"slots"}, "slots", "changes later slots"),
    (
        Broken,
        calls.values_off(2, 23),
        {"slots", "chunked", "spread", "batch", "decode", "last-slot", "padding"},
        "slots",
        "of which the values of layer 2: rms error",
    ),
    (Broken, calls.sees_unwritten, {"slots"}, "slots", "what unwritten slots hold moves the outputs"),
    (
        Broken,
        calls.rewrites(2, lambda start, stop: start - 1),
        {"slots", "capacity"},
        "capacity",
        "writing slot 63 changes other slots of the values of layer 2",
    ),
    (Broken, calls.stores_unwritten, {"slots"}, "slots", "what unwritten slots hold moves the values of layer 2"),
    (
        calls.Unchecked,
        nothing,
        {"capacity"},
        "capacity",
        "1 token at position 64 of 64 slots: not refused, and slots of the keys of layer 0 are overwritten",
    ),
    (
        calls.Dropping,
        nothing,
        {"capacity"},
        "capacity",
        "2 tokens at position 63 of 64 slots: not refused, and nothing is written",
    ),
    (calls.LateRefusal, nothing, {"capacity"}, "capacity", "64 slots: refused, and slots of the keys of layer 0"),
    (
        Broken,
        calls.last_slot_not_written,
        {"capacity"},
        "capacity",
        "the last slot, 63, of the keys of layer 2 is not written",
    ),
    (
        calls.BehindPadding,
        nothing,
        {"padding", "batch", "invariance"},
        "padding",
        "other tokens in the padding move outputs",
    ),
    (
        Broken,
        calls.keeps_padding,
        {"padding", "batch", "slots", "capacity"},
        "padding",
        "other tokens in the padding move outputs",
    ),
    (Broken, calls.last_token_leaks, {"padding"}, "padding", "other tokens in the padding move the cache"),
    (Broken, calls.batch_has_its_own_noise(3e-5), {"batch", "invariance"}, "invariance", "rms error"),
    (Broken, calls.rows_share_a_scale, {"invariance"}, "invariance", "other tokens in the rows beside it move a row"),
    (Broken, calls.never_twice, {"determinism"}, "determinism", "1 differ, by"),
    (Broken, calls.late_steps_never_twice, {"determinism"}, "determinism", "first position 47"),
]


@pytest.mark.parametrize(("kind", "breaker", "expected", "name", "said"), DEFECTS)
def test_a_broken_decoder_fails_where_it_is_broken(
    tiny: Checkpoint, kind: type[Broken], breaker: Breaker, expected: set[str], name: str, said: str
) -> None:
    report = judge(kind(eager_model(tiny), M, breaker), tiny, OPTIONS)
    assert failed(report) - {"greedy"} == expected, report.to_json()["checks"]
    assert said in message(report, name)


@pytest.mark.parametrize("headless", [False, True])
@pytest.mark.parametrize(
    ("breaker", "name"),
    [
        (calls.chunk_sees_only_itself, "chunked"),
        (calls.rewrites(2, lambda start, stop: start - 1), "slots"),
        (calls.sees_unwritten, "slots"),
        (calls.last_slot_not_written, "capacity"),
        (calls.keeps_padding, "padding"),
        (calls.batch_has_its_own_noise(1e-3), "invariance"),
    ],
)
def test_other_ends_of_the_stack(tiny: Checkpoint, headless: bool, breaker: Breaker, name: str) -> None:
    model = eager_model(tiny, headless=headless, last_logits_only=not headless)
    options = replace(OPTIONS, checks=(name,))
    assert judge(EagerDecoder(model, M), tiny, options).verdict is Verdict.PASS
    assert failed(judge(Broken(model, M, breaker), tiny, options)) == {name}


def test_a_refused_last_slot_is_a_failure_and_no_wrong_use(tiny: Checkpoint) -> None:
    narrow = calls.Narrow(eager_model(tiny), M, nothing)
    report = judge(narrow, tiny, replace(OPTIONS, checks=("capacity",)))
    assert failed(report) == {"capacity"}
    assert message(report, "capacity") == "the last slot, 63, is refused: full"


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_every_backend_passes_for_a_sound_bundle(precision: Precision, tmp_path: Path) -> None:
    """A .pt2 in float32 passes all checks in tests/cli/test_onnx_stories.py."""
    checkpoint = gainful(EVERYTHING)
    export(checkpoint, tmp_path, precision, slots=53)
    backends = ["onnxruntime", "replay"]
    if precision is Precision.FP16:
        add_program(checkpoint, Interface(checkpoint.config, precision.element, 53), tmp_path)
        backends.append("pt2")
    for backend in backends:
        decoder = open_decoder(tmp_path, backend)
        report = judge(decoder, checkpoint, JudgeOptions(backend=backend, checks=CHECKS))
        assert report.verdict is Verdict.PASS, report.to_json()["checks"]
        assert [result.name for result in report.checks] == list(CHECKS)


def test_reasons_why_a_check_says_nothing(tiny: Checkpoint) -> None:
    decoder = EagerDecoder(eager_model(tiny), M)
    decoder.foreign = Foreign("another tool's", no_slots="its cache grows", no_rows="it has one row")
    report = judge(decoder, tiny, OPTIONS)
    skipped = dict(report.skipped)
    assert {skipped[name] for name in ("slots", "capacity", "last-slot")} == {"its cache grows"}
    assert {skipped[name] for name in ("padding", "invariance", "batch")} == {"it has one row"}
    assert {"chunked", "determinism"} <= {result.name for result in report.checks}
    small = dict(judge(EagerDecoder(eager_model(tiny), 2), tiny, JudgeOptions(backend="eager")).skipped)
    assert small["chunked"] == "a prompt of one token is one chunk"
    assert small["padding"] == "the judged sequence is too short for a prompt with padding"
    assert "too small for rows" in small["invariance"]


def test_slots_are_held_to_eagers_keys_and_values(tiny: Checkpoint) -> None:
    report = judge(EagerDecoder(eager_model(tiny, torch.float16), M), tiny, replace(OPTIONS, checks=("slots",)))
    found = report.checks[0].stretch
    assert found is not None and found.positions == 24 and 0.5 < found.rms_ratio <= 1 and 1e-5 < found.rms_floor < 1e-1


def test_the_poison_is_strong_in_half_precision_too(tiny: Checkpoint) -> None:
    decoder = Broken(eager_model(tiny, torch.float16), M, calls.sees_unwritten)
    report = judge(decoder, tiny, replace(OPTIONS, checks=("slots",)))
    assert failed(report) == {"slots"} and "what unwritten slots hold moves the outputs" in report.checks[0].message


def test_what_has_moved() -> None:
    nan, inf = float("nan"), float("inf")
    before = torch.tensor([1.0, 2.0, nan, inf])
    assert moved_by(before, before.clone()) == 0 and same_bits(before, before.clone())
    after = before.clone()
    after[1] += 2.0**-22  # one unit in the last place of 2
    assert moved_by(before, after) == 1 and not has_moved(1) and has_moved(1.01) and not same_bits(before, after)
    for index, value in ((0, nan), (1, inf), (2, 0.0), (3, 5.0)):
        other = before.clone()
        other[index] = value
        assert has_moved(moved_by(before, other))
    assert has_moved(moved_by(torch.zeros(3), torch.tensor([0.0, 1e-30, 0.0])))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert moved_by(torch.zeros(0), torch.zeros(0)) == 0
