"""A cache that grows: right in every precision that ONNX Runtime judges, and each way to lose something is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blockexport.compare.core.check import CheckResult, Verdict
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.judged_bundle import judge_bundle
from blockexport.models.precision import Precision
from blockexport.runtime.onnx_decoder import OnnxDecoder
from blockexport.runtime.onnx_session import ort
from tests.exported import EVERYTHING, export, gainful

SLOTS = 64  # prefill 32, steps 32: it begins with 7 slots, and grows at 7, 14, 28 and 56

Mistake = Callable[[list[torch.Tensor], list[torch.Tensor]], None]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("growth") / "bundle"
    export(gainful(EVERYTHING), folder, Precision.FP32, SLOTS)
    return folder


def judged(bundle: Path) -> CheckResult:
    return judge_bundle(bundle, JudgeOptions(checks=("growth",)), made_of=gainful(EVERYTHING)).report.checks[0]


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_growing_changes_nothing(bundle: Path, tmp_path: Path, precision: Precision) -> None:
    if precision is not Precision.FP32:
        bundle = tmp_path / "bundle"
        export(gainful(EVERYTHING), bundle, precision, SLOTS)
    result = judged(bundle)
    assert result.verdict is Verdict.PASS, result.message
    assert "grows at 7, 14, 28 and 56 slots (58 positions)" in result.message


def lost_slot(old: list[torch.Tensor], new: list[torch.Tensor]) -> None:
    new[0][:, :, old[0].shape[2] - 1] = 0


def swapped_heads(old: list[torch.Tensor], new: list[torch.Tensor]) -> None:
    new[3].copy_(new[3].flip(1))


def lost_row(old: list[torch.Tensor], new: list[torch.Tensor]) -> None:
    new[2][1:] = 0  # of one row there is none


def shifted(old: list[torch.Tensor], new: list[torch.Tensor]) -> None:
    new[1].copy_(new[1].roll(1, 2))


def keys_for_values(old: list[torch.Tensor], new: list[torch.Tensor]) -> None:
    new[1].copy_(new[0])


def unwritten_slots(old: list[torch.Tensor], new: list[torch.Tensor]) -> None:
    new[0][:, :, old[0].shape[2] :] = 7


MISTAKES: list[tuple[Mistake, str]] = [
    (lost_slot, "growing from 7 slots changes what is in the keys of layer 0: first row 0, head 0, slot 6"),
    (swapped_heads, "growing from 7 slots changes what is in the values of layer 1: first row 0, head 0, slot 0"),
    (lost_row, "growing from 7 slots changes what is in the keys of layer 1: first row 1, head 0, slot 0"),
    (shifted, "growing from 7 slots changes what is in the values of layer 0"),
    (keys_for_values, "growing from 7 slots changes what is in the values of layer 0"),
    (unwritten_slots, "growing from 7 slots adds slots to the keys of layer 0 that do not hold zeros"),
]


@pytest.mark.parametrize(("mistake", "said"), MISTAKES)
def test_what_growing_loses_is_told(bundle: Path, mistake: Mistake, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_room = OnnxDecoder.make_room

    def broken(decoder: OnnxDecoder, slots: int) -> None:
        old = list(decoder._past)
        make_room(decoder, slots)
        if decoder._past[0] is not old[0]:
            mistake(old, decoder._past)

    monkeypatch.setattr(OnnxDecoder, "make_room", broken)
    result = judged(bundle)
    assert result.verdict is Verdict.FAIL
    assert result.message.startswith(said), result.message


def test_a_buffer_that_is_not_bound_again_is_seen_in_the_outputs(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bind_caches = OnnxDecoder._bind_caches

    def stale(decoder: OnnxDecoder) -> ort.IOBinding:
        """Values of the last layer are bound as copies, so what a call writes is lost at the next growth."""
        own, decoder._past[-1] = decoder._past[-1], decoder._past[-1].clone()
        binding = bind_caches(decoder)
        decoder._bound, decoder._past[-1] = decoder._past[-1], own  # type: ignore[attr-defined]  # kept alive
        return binding

    monkeypatch.setattr(OnnxDecoder, "_bind_caches", stale)
    result = judged(bundle)
    assert result.verdict is Verdict.FAIL
    assert "a cache that grows at 7, 14, 28 and 56 slots" in result.message


def test_what_does_not_grow_is_not_asked(bundle: Path, tmp_path: Path) -> None:
    skipped = dict(judge_bundle(bundle, backend="replay", made_of=gainful(EVERYTHING)).report.skipped)
    assert skipped["growth"] == "all slots are there from the start"
    export(gainful(EVERYTHING), tmp_path / "tiny", Precision.FP32, 10)  # it begins with one slot
    tiny = judged(tmp_path / "tiny")
    assert tiny.verdict is Verdict.PASS and "grows at 1, 2, 4 and 8 slots" in tiny.message
    export(gainful(EVERYTHING), tmp_path / "small", Precision.FP32, 5)
    skipped = dict(judge_bundle(tmp_path / "small", made_of=gainful(EVERYTHING)).report.skipped)
    assert skipped["growth"] == "the cache is too small to double three times"
