"""Answers that run together: each is what it is alone, none waits for another's prompt, and rows are lent anew."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport.models.errors import ArtifactError, CacheLostError, UsageError
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.open import open_decoder
from blockexport.runtime.serving.request import AnswerRequest, End, Ending, NewToken
from blockexport.runtime.serving.rows import Rows
from blockexport.runtime.serving.scheduler import BusyError, Scheduler
from blockexport.runtime.serving.ticket import MOST_REPLAYS, Ticket
from blockexport.runtime.text.generate import Generation
from blockexport.runtime.text.sampling import SamplingOptions

VOCAB = 512


class Heard:
    """A listener."""

    def __init__(self) -> None:
        self.tokens: list[NewToken] = []
        self.end: End | None = None

    def __call__(self, event: NewToken | End) -> None:
        assert self.end is None, "nothing comes after the end"
        if isinstance(event, End):
            self.end = event
        else:
            self.tokens.append(event)

    @property
    def ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]


@pytest.fixture(scope="module")
def decoder(judged_stories: Path) -> Decoder:
    return open_decoder(judged_stories, threads=1)


def alone(decoder: Decoder, request: AnswerRequest) -> list[int]:
    return list(Generation(decoder, request.prompt_ids, request.sampling, request.stop_ids, request.max_new_tokens))


def finish(scheduler: Scheduler) -> None:
    for _ in range(5000):
        if not scheduler.turn():
            return
    raise AssertionError("the scheduler never ends")


def some_request(rng: random.Random) -> AnswerRequest:
    greedy = rng.random() < 0.4
    sampling = SamplingOptions() if greedy else SamplingOptions(rng.uniform(0.3, 2), 0, 0.95, rng.getrandbits(64))
    prompt = tuple(rng.randrange(3, VOCAB) for _ in range(rng.choice([1, 2, 7, 30, 63, 64, 65, 150])))
    return AnswerRequest(prompt, sampling, {1, 2}, rng.choice([1, 5, 20, 40]))


def test_each_answer_is_the_one_it_is_alone(decoder: Decoder) -> None:
    """Greedy and drawn, of all lengths, some cancelled on the way, three rows for thirty: to the last token."""
    rng = random.Random(0)
    requests = [some_request(rng) for _ in range(30)]
    expected = [alone(decoder, request) for request in requests]
    scheduler = Scheduler(decoder, 3, queue_limit=100)
    heard: list[Heard] = []
    cancelled: set[int] = set()
    waiting = list(enumerate(requests))
    tickets: dict[int, Ticket] = {}
    while scheduler.turn() or waiting:
        for number, request in waiting[: rng.randrange(3)]:
            heard.append(Heard())
            tickets[number] = scheduler.submit(request, heard[-1])
            waiting.remove((number, request))
        if tickets and rng.random() < 0.05:
            number = rng.choice(list(tickets))
            tickets[number].cancel()
            cancelled.add(number)
    assert len(cancelled) > 2
    for number, (said, wanted) in enumerate(zip(heard, expected, strict=True)):
        assert said.end is not None and said.end.new_tokens == len(said.ids)
        if said.end.why is Ending.CANCELLED:
            assert number in cancelled and said.ids == wanted[: len(said.ids)]
        else:
            assert said.ids == wanted
            assert said.end.why is (Ending.LENGTH if len(wanted) == requests[number].max_new_tokens else Ending.STOP)


def test_the_logits_of_a_row_are_those_it_has_alone_to_the_bit(decoder: Decoder) -> None:
    """In one row of five, between strangers, after strangers, and in a cache that has grown."""
    ids = torch.randint(3, VOCAB, (140,), generator=torch.Generator().manual_seed(1))
    rows = Rows(decoder, 1)
    row = rows.lend()
    assert row == 0
    wanted = [rows.append(0, ids[:50])] + [rows.step({0: one[None]})[0][None] for one in ids[50:]]
    rows = Rows(decoder, 5)
    for row in range(5):
        assert rows.lend() == row
        rows.append(row, ids.flip(0)[: 20 + 7 * row])
    rows.take_back(2)
    rows.take_back(3)
    assert rows.lend() == 2
    got = [rows.append(2, ids[:31]), rows.append(2, ids[31:50])]
    for i, one in enumerate(ids[50:]):
        others = {} if i % 3 == 0 else {0: ids[i : i + 1], 4: ids[2 * i % 90 :][:1]} if i % 3 == 1 else {1: one[None]}
        got.append(rows.step({2: one[None], **others})[2][None])
    assert torch.equal(torch.cat(got), torch.cat(wanted))
    assert rows.left(2) == decoder.max_sequence_length - 140


@pytest.mark.parametrize("backend", ["onnxruntime", "replay", "eager"])
def test_rows_that_are_not_run_stay_as_they_are(judged_stories: Path, backend: str) -> None:
    decoder = open_decoder(judged_stories, backend)
    decoder.reset(4)
    ids = torch.randint(3, VOCAB, (4, 12), generator=torch.Generator().manual_seed(2))
    decoder.prefill(ids[:, :5])
    whole = decoder.prefill(ids[:, 5:])
    decoder.reset(4)
    decoder.prefill(ids[:, :5])
    before = [tensor.clone() for layer in range(5) for tensor in decoder.cache(layer)]
    part = decoder.prefill_rows(range(1, 3), ids[1:3, 5:])
    assert (part - whole[1:3]).abs().max() < 1e-4
    assert decoder.lengths_B.tolist() == [5, 12, 12, 5]
    after = [tensor for layer in range(5) for tensor in decoder.cache(layer)]
    assert all(torch.equal(a[[0, 3]], b[[0, 3]]) for a, b in zip(before, after, strict=True))
    assert not any(torch.equal(a[[1, 2]], b[[1, 2]]) for a, b in zip(before, after, strict=True))
    with pytest.raises(UsageError, match="consecutive rows"):
        decoder.prefill_rows(range(3, 5), ids[:2, :1])


def test_an_answer_waits_for_no_more_than_a_chunk(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, 3, chunk=16)
    first, long = Heard(), Heard()
    scheduler.submit(AnswerRequest((5, 6, 7), max_new_tokens=200), first)
    scheduler.turn()
    scheduler.submit(AnswerRequest(tuple(range(3, 203)), max_new_tokens=2), long)
    scheduler.submit(AnswerRequest(tuple(range(3, 203)), max_new_tokens=2), Heard())
    told = [len(first.ids)]
    while not long.ids:
        before = scheduler.metrics.prompt_tokens
        scheduler.turn()
        assert scheduler.metrics.prompt_tokens - before <= 16
        told.append(len(first.ids))
    assert told == list(range(told[0], told[0] + 14))  # 200 tokens are 13 chunks
    scheduler.close(cancel=True)
    finish(scheduler)


def test_a_full_queue_says_so_and_a_cancelled_request_makes_room(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, 2, queue_limit=1)
    heard = [Heard() for _ in range(4)]
    tickets = [scheduler.submit(AnswerRequest((9,), max_new_tokens=50), one) for one in heard[:3]]
    with pytest.raises(BusyError, match="1 requests wait already"):
        scheduler.submit(AnswerRequest((9,)), heard[3])
    scheduler.turn()
    assert (scheduler.answering, scheduler.waiting) == (2, 1)
    tickets[0].cancel()
    scheduler.turn()
    assert heard[0].end is not None and heard[0].end.why is Ending.CANCELLED and heard[2].ids
    finish(scheduler)
    assert [one.end.why for one in heard[1:3] if one.end] == [Ending.LENGTH, Ending.LENGTH]


def test_a_request_ends_when_its_time_is_over_with_a_row_or_without(decoder: Decoder) -> None:
    now = [0.0]
    scheduler = Scheduler(decoder, 1, clock=lambda: now[0])
    heard = [Heard(), Heard()]
    for one in heard:
        scheduler.submit(AnswerRequest((9,), max_new_tokens=50, seconds=2.0), one)
    scheduler.turn()
    now[0] = 2.5
    assert not scheduler.turn()
    assert [one.end.why for one in heard if one.end] == [Ending.TIMED_OUT] * 2
    assert heard[0].ids and not heard[1].ids


def test_closing_answers_what_was_taken_and_takes_no_more(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, 1)
    heard = [Heard(), Heard()]
    for one in heard:
        scheduler.submit(AnswerRequest((9,), max_new_tokens=5), one)
    scheduler.close()
    with pytest.raises(BusyError, match="shutting down"):
        scheduler.submit(AnswerRequest((9,)), Heard())
    scheduler.run()  # comes back when all have ended
    assert [len(one.ids) for one in heard] == [5, 5]


def test_an_answer_ends_with_the_last_slot(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, 2)
    heard = [Heard(), Heard()]
    slots = decoder.max_sequence_length
    scheduler.submit(AnswerRequest(tuple([7] * slots)), heard[0])
    scheduler.submit(AnswerRequest(tuple([7] * (slots - 3))), heard[1])
    with pytest.raises(UsageError, match=f"{slots + 1} tokens and the cache {slots} slots"):
        scheduler.submit(AnswerRequest(tuple([7] * (slots + 1))), Heard())
    finish(scheduler)
    assert [len(one.ids) for one in heard] == [1, 4]
    assert decoder.held(0)[0].shape[2] < slots  # small again


@pytest.mark.parametrize("harm", ["fails", "gives NaN"])
def test_a_call_that_goes_wrong_ends_its_own_answers_alone(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """NaN in the slots of a row would be seen by its next tenant, masked or not."""
    request = AnswerRequest((4, 5, 6), max_new_tokens=6)
    wanted = alone(decoder, request)
    scheduler = Scheduler(decoder, 1)
    run: Callable[..., Any] = decoder._run
    calls = [0]

    def broken(inputs: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        outputs: torch.Tensor = run(inputs, positions)
        if calls[0] != 3:
            return outputs
        if harm == "fails":
            raise ArtifactError("node 7 fails")
        for layer in range(5):
            for tensor in decoder.held(layer):
                tensor[:] = torch.nan
        return outputs * torch.nan

    monkeypatch.setattr(decoder, "_run", broken)
    heard = [Heard(), Heard()]
    for one in heard:
        scheduler.submit(request, one)
    finish(scheduler)
    assert heard[0].end is not None and heard[0].end.why is Ending.FAILED and heard[0].end.message
    assert heard[0].ids == wanted[:2]
    assert heard[1].ids == wanted


def losing(decoder: Decoder, monkeypatch: pytest.MonkeyPatch, when: Callable[[int], bool]) -> None:
    """Have calls find the cache lost; it is then full of large numbers until it is made anew."""
    run: Callable[..., Any] = decoder._run
    calls = [0]

    def lossy(inputs: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if not when(calls[0]):
            outputs: torch.Tensor = run(inputs, positions)
            return outputs
        for layer in range(5):
            for tensor in decoder.held(layer):
                tensor[:] = 1e4
        raise CacheLostError("the process of a stage has ended")

    monkeypatch.setattr(decoder, "_run", lossy)


def test_answers_begin_again_unnoticed_where_the_cache_is_lost(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of prompts and of answers, greedy and drawn; three times at most for each of them."""
    rng = random.Random(5)
    requests = [some_request(rng) for _ in range(9)]
    expected = [alone(decoder, request) for request in requests]
    losing(decoder, monkeypatch, lambda call: call in (2, 30, 31))
    scheduler = Scheduler(decoder, 3)
    heard = [Heard() for _ in requests]
    for request, listener in zip(requests, heard, strict=True):
        scheduler.submit(request, listener)
    finish(scheduler)
    assert [one.ids for one in heard] == expected
    assert scheduler.metrics.failures == 3 and scheduler.metrics.replays > 6


def test_what_is_lost_over_and_over_is_given_up(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    losing(decoder, monkeypatch, lambda call: call < MOST_REPLAYS + 2)
    scheduler = Scheduler(decoder, 1)
    heard = [Heard(), Heard()]
    for one in heard:
        scheduler.submit(AnswerRequest((4, 5), max_new_tokens=5), one)
    finish(scheduler)
    assert heard[0].end is not None and heard[0].end.why is Ending.FAILED and "3 times before" in heard[0].end.message
    assert heard[1].end is not None and heard[1].end.why is Ending.LENGTH and len(heard[1].ids) == 5


def test_logprobs_are_those_of_the_softmax(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, 1)
    heard = Heard()
    scheduler.submit(AnswerRequest((4, 5), SamplingOptions(1.0, seed=3), max_new_tokens=1, top_logprobs=3), heard)
    finish(scheduler)
    decoder.reset(1)
    expected_V = decoder.prefill(torch.tensor([[4, 5]]))[0, -1].double().log_softmax(-1)
    told = heard.tokens[0].logprobs
    assert told is not None
    assert told.chosen == pytest.approx(float(expected_V[heard.ids[0]]), abs=1e-6)
    best = expected_V.topk(3)
    assert [i for i, _ in told.top] == best.indices.tolist()
    assert [value for _, value in told.top] == pytest.approx(best.values.tolist(), abs=1e-6)
