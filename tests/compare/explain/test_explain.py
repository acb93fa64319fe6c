"""Every failure is explained, or a sentence says why not: also those that the judged sequence does not show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from blockexport.compare.checks.catalogue import ALL_CHECKS
from blockexport.compare.checks.check_capacity import capacity
from blockexport.compare.checks.check_parameters import parameters
from blockexport.compare.core.check import Check, CheckResult, Kind, Outcome, Verdict
from blockexport.compare.core.context import CheckContext
from blockexport.compare.explain.diagnosis import Diagnosis
from blockexport.compare.explain.explain import explain
from blockexport.compare.explain.explanation import Explanation
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.report.report import Report
from blockexport.compare.report.report_html import to_html
from tests.compare.broken import (
    Breaker,
    Broken,
    noise_at,
    one_index_for_all_rows,
    rows_exchange_caches,
    second_choice,
)
from tests.compare.broken_calls import (
    Unchecked,
    chunk_sees_only_itself,
    keeps_padding,
    never_twice,
    sees_unwritten,
    values_off,
)
from tests.compare.judged import judge
from tests.compare.memory_checkpoint import MemoryCheckpoint, eager_model

M = 64
ALONG = [entry.name for entry in ALL_CHECKS if entry.along]
NOTE = "no graph here"
OPTIONS = JudgeOptions(
    backend="eager",
    decode_steps=12,
    prefill=32,
    explain=lambda context, results: explain(context, results, None, NOTE),
)


def judged(tiny: MemoryCheckpoint, breaker: Breaker, *checks: str, kind: type[Broken] = Broken) -> Report:
    return judge(kind(eager_model(tiny), M, breaker), tiny, replace(OPTIONS, checks=checks))


def explained(tiny: MemoryCheckpoint, breaker: Breaker, *checks: str, kind: type[Broken] = Broken) -> Explanation:
    report = judged(tiny, breaker, *checks, kind=kind)
    assert report.verdict is Verdict.FAIL and report.explanation is not None
    assert all(report.explanation.sentences)
    return report.explanation


ELSEWHERE: list[tuple[Breaker, str, str]] = [
    (one_index_for_all_rows, "batch", "alone, the row's tokens stay within the floor"),
    (rows_exchange_caches, "invariance", "alone, the row stays within the floor"),
    (keeps_padding, "padding", "without padding the same tokens stay within the floor"),
    (sees_unwritten, "slots", "outputs and slots of the same calls on an empty cache stay within the floor"),
    (never_twice, "determinism", "something is random, or reads memory that nobody wrote"),
]


@pytest.mark.parametrize(("breaker", "check", "said"), ELSEWHERE, ids=[check for _, check, _ in ELSEWHERE])
def test_what_one_row_does_not_show_is_said_to_be_elsewhere(
    tiny: MemoryCheckpoint, breaker: Breaker, check: str, said: str
) -> None:
    found = explained(tiny, breaker, check)
    assert found.sentences == list(found.remarks) and len(found.remarks) == 1
    assert found.remarks[0].startswith(f"{check}: not located; ") and said in found.remarks[0]


def test_a_check_about_the_end_of_the_cache_has_a_sentence_too(tiny: MemoryCheckpoint) -> None:
    found = explained(tiny, noise_at(1000, 0.0), "capacity", kind=Unchecked)
    assert found.sentences == [f"capacity: not located; {capacity.unlocated}"]


def test_the_calls_of_the_check_that_failed_are_looked_into(tiny: MemoryCheckpoint) -> None:
    greedy = explained(tiny, second_choice, "greedy")
    assert greedy.where == "in the calls of greedy (a prompt of 24 tokens and the 40 generated after it)"
    assert greedy.sentences[0] == f"{greedy.where}: {NOTE}" and greedy.diagnosis is not None
    chunked = explained(tiny, chunk_sees_only_itself, "chunked")
    assert chunked.where.startswith("in the calls of chunked") and chunked.diagnosis is not None


def test_a_long_walk_over_a_large_vocabulary_is_watched_at_some_positions(
    tiny: MemoryCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = explained(tiny, chunk_sees_only_itself, "chunked")
    monkeypatch.setattr("blockexport.compare.explain.explain.WATCHED_BYTES", 8 * tiny.config.vocab_size * 9)
    some = explained(tiny, chunk_sees_only_itself, "chunked")
    assert whole.diagnosis is not None and some.diagnosis is not None
    assert some.where == whole.where
    assert 9 <= len(some.diagnosis.positions) < len(whole.diagnosis.positions) and some.diagnosis.positions[-1] == 31


def test_a_wrong_slot_is_found_where_no_output_is_wrong(tiny: MemoryCheckpoint) -> None:
    found = explained(tiny, values_off(2, 23), "slots")
    assert found.wrong_slot is not None and found.diagnosis is None
    assert (found.wrong_slot.position, found.wrong_slot.layer, found.wrong_slot.kind) == (23, 2, "values")
    assert found.sentences[1].startswith("the first wrong slot of the cache is 23, in the values of layer 2, left by")


def test_an_earlier_call_that_left_a_wrong_cache_is_said(tiny: MemoryCheckpoint) -> None:
    """Slot 50 is filled on the way to the last slots, and its call's own outputs are right."""
    found = explained(tiny, values_off(2, 50), *ALONG)
    assert found.where == "" and found.wrong_slot is not None
    slot = found.wrong_slot
    assert (slot.position, slot.layer, slot.kind, slot.start, slot.stop) == (50, 2, "values", 44, 56)


def test_nan_alone_has_no_cause(tiny: MemoryCheckpoint) -> None:
    found = explained(tiny, noise_at(40, float("nan")), *ALONG)
    assert found.diagnosis is None and "no known defect is tried" in found.sentences[-1]


def test_what_the_file_gives_away_is_the_cause_where_no_defect_is(tiny: MemoryCheckpoint) -> None:
    failed = CheckResult(parameters, Verdict.FAIL, "model.norm.weight is 1.05 times the checkpoint's")

    def with_the_file(context: CheckContext, results: Sequence[CheckResult]) -> Explanation:
        return explain(context, [*results, failed], None, NOTE)

    options = replace(OPTIONS, explain=with_the_file, checks=("decode",))
    report = judge(Broken(eager_model(tiny), M, noise_at(40, 3.0)), tiny, options)
    assert report.explanation is not None and report.explanation.diagnosis is not None
    # That no known defect does it too is no news where the cause is named.
    assert report.explanation.cause_sentences == [f"likely cause: {failed.message}"]
    assert "None of" not in to_html(report)
    alone = explain(_judgement(tiny)[0], [failed], None)
    assert alone.sentences == [f"likely cause: {failed.message}"]


@pytest.mark.parametrize(
    "file",
    [
        ("model.norm.weight is 1.05 times the checkpoint's",),
        ("the epsilon of layer 2 is 0.001",),
        ("lm_head.weight differs in 1 of 9 values", "RoPE table 1 is of another theta"),
    ],
)
def test_no_count_of_defects_follows_a_cause_that_the_file_gives_away(file: tuple[str, ...]) -> None:
    nothing = Diagnosis((), (), None, 46, 1.0, (0,))
    told = [f"likely cause: {message}" for message in file]
    assert Explanation(None, nothing, "", file=file).sentences == told
    assert Explanation(None, None, "", file=file).sentences == told
    assert Explanation(None, nothing, "").sentences == ["none of 46 known defects reproduces these logits"]


def test_every_check_has_a_walk_or_a_reason(tiny: MemoryCheckpoint) -> None:
    context, results = _judgement(tiny)
    measured = {result.name: result.figures for result in results}
    silent = Check("", Kind.TYPES, function=lambda context: Outcome("", 0))
    for entry in ALL_CHECKS:
        walk = entry.calls(context, measured.get(entry.name))
        if walk is not None:
            assert walk.calls[0].start == 0 and walk.calls[-1].stop <= len(walk.ids_S) and walk.within
        else:
            assert entry.along or entry.kind is Kind.CONTENT or entry.unlocated != silent.unlocated


def _judgement(tiny: MemoryCheckpoint) -> tuple[CheckContext, Sequence[CheckResult]]:
    kept: list[tuple[CheckContext, Sequence[CheckResult]]] = []

    def keep(context: CheckContext, results: Sequence[CheckResult]) -> Explanation:
        kept.append((context, results))
        return Explanation(None, None)

    judge(Broken(eager_model(tiny), M, noise_at(1000, 0.0)), tiny, replace(OPTIONS, explain=keep, locate=True))
    return kept[0]
