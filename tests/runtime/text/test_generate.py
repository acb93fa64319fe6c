"""The generation loop on stories260K: the golden text, and every way it can end or be refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.interface import Ends
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.text import generate as generate_module
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
from blockexport.runtime.text.generate import FinishReason, Generation
from blockexport.runtime.text.sampling import Sampler, SamplingOptions
from tests.support import shared_path

GREEDY = SamplingOptions()


def _decoder(slots: int = 512, **options: Any) -> EagerDecoder:
    checkpoint = open_checkpoint(str(shared_path("models/stories260K")))
    return EagerDecoder(load_model(checkpoint, torch.float32, slots, ends=Ends.of(**options)), slots)


def _golden() -> dict[str, Any]:
    golden: dict[str, Any] = json.loads((shared_path("models/stories260K") / "golden.json").read_text("utf-8"))
    return golden


def test_greedy_text_is_the_golden_text() -> None:
    golden = _golden()
    count = len(golden["ids"]) - len(golden["prompt_ids"])
    generation = Generation(_decoder(), golden["prompt_ids"], GREEDY, (), count)
    ids = list(generation)
    assert golden["prompt_ids"] + ids == golden["ids"]
    assert generation.finish_reason is FinishReason.LENGTH
    text = BundleTokenizer(shared_path("models/stories260K")).decode(ids)
    assert text.strip() == golden["text"].strip()
    assert len(text) > 300


def test_last_logits_only_and_prompts_in_chunks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = _golden()["ids"][:40]
    expected = list(Generation(_decoder(), prompt, GREEDY, (), 12))
    assert list(Generation(_decoder(last_logits_only=True), prompt, GREEDY, (), 12)) == expected
    monkeypatch.setattr(generate_module, "PREFILL_CHUNK", 7)
    decoder = _decoder()
    assert list(Generation(decoder, prompt, GREEDY, (), 12)) == expected
    assert int(decoder.lengths_B[0]) == 40 + 11  # the last token was never fed


def test_sampled_tokens_are_the_samplers_on_the_decoders_logits() -> None:
    options = SamplingOptions(temperature=0.9, top_k=30, top_p=0.9, seed=77)
    ids = list(Generation(_decoder(), [1, 403], options, (), 20))
    sampler, decoder, expected = Sampler(options), _decoder(), []
    logits = decoder.prefill(torch.tensor([[1, 403]]))
    for _ in range(20):
        expected.append(sampler.sample(logits[0, -1].numpy()))
        logits = decoder.step(torch.tensor([[expected[-1]]]))
    assert ids == expected
    assert ids == list(Generation(_decoder(), [1, 403], options, (), 20))
    assert ids != list(Generation(_decoder(), [1, 403], replace(options, seed=78), (), 20))


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it() -> None:
    golden = _golden()["ids"]
    stop = golden[5]
    generation = Generation(_decoder(), [1], GREEDY, [stop, 2], 100)
    assert list(generation) == golden[1:5]
    assert generation.finish_reason is FinishReason.STOP
    assert list(generation) == []  # it stays ended
    assert generation.count == 4


@pytest.mark.parametrize("prompt_length", [1, 20, 31, 32])
def test_the_last_slot_is_used_and_no_slot_after_it(prompt_length: int) -> None:
    prompt = _golden()["ids"][:prompt_length]
    decoder = _decoder(32)
    generation = Generation(decoder, prompt, GREEDY, ())
    ids = list(generation)
    # Slots hold the prompt and every token but the last, which is chosen from the logits of the last slot.
    assert len(ids) == 32 - prompt_length + 1
    assert int(decoder.lengths_B[0]) == 32
    assert generation.finish_reason is FinishReason.CACHE_FULL
    assert prompt + ids == _golden()["ids"][:33]


def test_counts_and_times() -> None:
    generation = Generation(_decoder(), [1, 403], GREEDY, (), 5)
    assert (generation.prompt_length, generation.count, generation.finish_reason) == (2, 0, None)
    list(generation)
    assert (generation.count, generation.steps) == (5, 4)
    assert generation.prefill_seconds > 0
    assert generation.decode_seconds > 0


def test_a_used_decoder_starts_afresh() -> None:
    decoder = _decoder()
    first = list(Generation(decoder, [407, 261], GREEDY, (), 9))
    assert list(Generation(decoder, [407, 261], GREEDY, (), 9)) == first
    assert int(decoder.lengths_B[0]) == 2 + 8


def test_wrong_prompts_are_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = _decoder(32)

    def run(*_: object) -> torch.Tensor:
        raise AssertionError("the decoder ran")

    monkeypatch.setattr(decoder, "_run", run)
    for prompt, words in (
        ([1] * 33, "33 tokens and the cache 32 slots"),
        ([], "no tokens"),
        ([1, 512], "token id 512"),
        ([-1], "token id -1"),
    ):
        with pytest.raises(UsageError, match=words):
            Generation(decoder, prompt, GREEDY)
    with pytest.raises(UsageError, match="max-new-tokens is 0"):
        Generation(decoder, [1], GREEDY, (), 0)
    with pytest.raises(UsageError, match="headless"):
        Generation(_decoder(32, headless=True), [1], GREEDY)


def test_broken_logits_stop_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = _decoder(32)
    monkeypatch.setattr(decoder, "_run", lambda inputs, _: torch.full((*inputs.shape, 512), np.nan))
    with pytest.raises(UsageError, match="nan"):
        next(Generation(decoder, [1], GREEDY))
