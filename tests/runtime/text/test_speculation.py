"""Drafts: the same greedy text, the same distribution, and every way a run of tokens can end."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.interface import Ends
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.text.generate import FinishReason, Generation
from blockexport.runtime.text.sampling import Sampler, SamplingOptions
from blockexport.runtime.text.speculation import Draft, ModelDraft, NgramDraft, Proposal, SpeculativeGeneration
from tests.support import shared_path

GREEDY = SamplingOptions()
VOCAB = 512


def _decoder(slots: int = 128, noise: float = 0.0, **ends: Any) -> EagerDecoder:
    """stories260K; with noise in its weights it is another, mostly wrong model."""
    model = load_model(
        open_checkpoint(str(shared_path("models/stories260K"))), torch.float32, slots, ends=Ends.of(**ends)
    )
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * parameter.std() * torch.randn_like(parameter))
    return EagerDecoder(model, slots)


def _prompts(count: int) -> list[list[int]]:
    generator = np.random.default_rng(3)
    return [[1, *generator.integers(3, VOCAB, size=1 + i % 9).tolist()] for i in range(count)]


def _draft(kind: str, slots: int = 128) -> Draft:
    if kind == "ngram":
        return NgramDraft()
    return ModelDraft(_decoder(slots, noise=0.0 if kind == "same" else 2.0), VOCAB)


@pytest.mark.parametrize("kind", ["ngram", "same", "wrong"])
def test_greedy_text_is_the_same(kind: str) -> None:
    decoder, draft = _decoder(), _draft(kind)
    proposed = accepted = 0
    for prompt in _prompts(8):
        expected = Generation(decoder, prompt, GREEDY, [2], 40)
        ids, filled = list(expected), int(decoder.lengths_B[0])
        generation = SpeculativeGeneration(decoder, prompt, GREEDY, _fresh(draft), 6, [2], 40)
        assert list(generation) == ids
        assert generation.finish_reason is expected.finish_reason
        assert int(decoder.lengths_B[0]) == filled
        assert generation.calls + generation.accepted == generation.steps == expected.steps
        proposed, accepted = proposed + generation.proposed, accepted + generation.accepted
    rate = accepted / proposed
    assert {"ngram": 0.1 < rate < 0.9, "same": rate > 0.97, "wrong": rate < 0.1}[kind], rate


def _fresh(draft: Draft) -> Draft:
    """A model's draft may be used again; one of n-grams belongs to its text."""
    return NgramDraft() if isinstance(draft, NgramDraft) else draft


@pytest.mark.parametrize("kind", ["ngram", "same", "wrong"])
@pytest.mark.parametrize("prompt_length", [1, 29, 31, 32])
def test_the_last_slot_is_used_and_no_slot_after_it(kind: str, prompt_length: int) -> None:
    prompt = [1, *[403, 407, 261] * 11][:prompt_length]
    decoder = _decoder(32)
    expected = list(Generation(decoder, prompt, GREEDY))
    generation = SpeculativeGeneration(decoder, prompt, GREEDY, _draft(kind, 32), 8)
    assert list(generation) == expected
    assert len(expected) == 32 - prompt_length + 1
    assert int(decoder.lengths_B[0]) == 32
    assert generation.finish_reason is FinishReason.CACHE_FULL


def test_a_draft_runs_what_is_new_to_it_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, fed = _decoder(), list[list[int]]()
    prefill = decoder.prefill

    def heard(inputs: torch.Tensor) -> torch.Tensor:
        fed.append(inputs[0].tolist())
        return prefill(inputs)

    monkeypatch.setattr(decoder, "prefill", heard)
    draft, sampler = ModelDraft(decoder, VOCAB), Sampler(GREEDY)
    first, second, _ = draft.propose([1, 20, 30], 3, sampler).token_ids
    assert fed == [[1, 20, 30], [first], [second]]
    for text, new in (([1, 20, 30, first, second + 1], [second + 1]), ([1, 20, 31], [31]), ([9, 20], [9, 20])):
        fed.clear()
        proposed = draft.propose(text, 1, sampler)
        assert fed == [new]
        assert proposed == ModelDraft(_decoder(), VOCAB).propose(text, 1, sampler)


def test_a_draft_with_fewer_slots_falls_silent() -> None:
    decoder = _decoder(64)
    generation = SpeculativeGeneration(decoder, [1], GREEDY, _draft("same", 32), 8)
    assert list(generation) == list(Generation(decoder, [1], GREEDY))
    assert 20 < generation.accepted < 33


@pytest.mark.parametrize("place", [1, 2, 5, 11])
def test_a_stop_token_inside_a_run_ends_the_answer(place: int) -> None:
    decoder = _decoder()
    golden = list(Generation(decoder, [1], GREEDY, (), 24))
    stop = golden[place]
    before = golden[: golden.index(stop)]
    assert list(Generation(decoder, [1], GREEDY, [stop], 24)) == before
    filled = int(decoder.lengths_B[0])
    generation = SpeculativeGeneration(decoder, [1], GREEDY, _draft("same"), 8, [stop], 24)
    assert list(generation) == before
    assert generation.finish_reason is FinishReason.STOP
    assert int(decoder.lengths_B[0]) == filled  # nothing after the stop token was kept
    assert list(generation) == []


@pytest.mark.parametrize("most", [3, 8])
@pytest.mark.parametrize("limit", [1, 2, 7])
def test_no_more_tokens_than_asked_for(most: int, limit: int) -> None:
    decoder = _decoder()
    expected = list(Generation(decoder, [1], GREEDY, (), limit))
    generation = SpeculativeGeneration(decoder, [1], GREEDY, _draft("same"), most, (), limit)
    assert list(generation) == expected
    assert generation.finish_reason is FinishReason.LENGTH
    assert int(decoder.lengths_B[0]) == limit  # the prompt's one token, and all but the last


def test_ngrams_propose_what_followed_the_longest_suffix() -> None:
    sampler = Sampler(GREEDY)

    def proposed(text: Sequence[int], count: int) -> list[int]:
        return NgramDraft().propose(text, count, sampler).token_ids

    assert proposed([5, 6, 7, 8, 6, 9, 5, 6], 3) == [7, 8, 6]  # after 5 6, though 6 alone was last followed by 9
    assert proposed([5, 6, 7, 8, 9, 6], 2) == [7, 8]
    assert proposed([4, 5, 9, 4, 7, 4], 2) == [7, 4]  # the last occurrence
    assert proposed([3, 4, 5, 4, 5], 5) == [4, 5, 4, 5, 4]  # it goes on repeating
    assert proposed([1, 2, 3], 4) == proposed([1], 4) == proposed([1, 1], 0) == []
    draft, text = NgramDraft(), [3, 4, 5, 6]
    assert draft.propose(text, 2, sampler).token_ids == []
    assert draft.propose([*text, 4], 2, sampler).token_ids == [5, 6]
    assert draft.propose([*text, 4, 5, 8, 5], 2, sampler).token_ids == [8, 5]


class _Chain(EagerDecoder):
    """Logits that depend on the last token alone: its distribution is known."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._model_source = _decoder(32)
        self.interface = self._model_source.interface
        self.table_VV = torch.randn(vocab_size, vocab_size, generator=torch.Generator().manual_seed(seed)) * 1.5
        self.lengths_B = torch.zeros(1, dtype=torch.int64)

    def reset(self, batch_size: int = 1) -> None:
        self.lengths_B = torch.zeros(batch_size, dtype=torch.int64)

    def prefill(self, inputs: torch.Tensor, lengths_B: torch.Tensor | None = None) -> torch.Tensor:
        self.lengths_B = self.lengths_B + inputs.shape[1]
        return self.table_VV[inputs]


class _Drawing:
    """A draft that draws from a fixed distribution, which the model does not have."""

    drawn_from_V = np.array([0.1, 0.55, 0.0, 0.05, 0.3])

    def propose(self, text: Sequence[int], count: int, sampler: Sampler) -> Proposal:
        ids = [sampler.draw(self.drawn_from_V) for _ in range(count)]
        return Proposal(ids, [self.drawn_from_V] * count)


class _Constant:
    """A draft of which every token is certain, and mostly wrong."""

    def propose(self, text: Sequence[int], count: int, sampler: Sampler) -> Proposal:
        return Proposal([3] * count, [])


@cache
def _chain() -> _Chain:
    return _Chain(1, 5)


def _drafts() -> dict[str, Draft]:
    return {"constant": _Constant(), "drawing": _Drawing(), "model": ModelDraft(_Chain(2, 5), 5)}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("constant", {}), ("drawing", {}), ("drawing", {"top_k": 4, "temperature": 1.4}), ("model", {"top_p": 0.9})],
)
def test_the_distribution_is_the_models(kind: str, settings: dict[str, Any]) -> None:
    """Chi-square of four tokens after the prompt over 2000 seeds, against the product of the table's rows."""
    chain, draft, draws = _chain(), _drafts()[kind], 2000
    found: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for seed in range(draws):
        options = SamplingOptions(**{"temperature": 1.0, **settings}, seed=seed)
        generation = SpeculativeGeneration(chain, [0], options, draft, 3, (), 4)
        found[tuple(generation)[:4]] += 1
        accepted += generation.accepted
    assert accepted > draws / 4
    sampler = Sampler(SamplingOptions(**{"temperature": 1.0, **settings}))
    rows = [sampler.probabilities(row.numpy()) for row in chain.table_VV]
    statistic, cells, rest = 0.0, 0, [0.0, 0.0]
    for ids in itertools.product(range(5), repeat=4):
        expected = draws * float(np.prod([rows[a][b] for a, b in itertools.pairwise((0, *ids))]))
        if expected >= 5:
            statistic, cells = statistic + (found[ids] - expected) ** 2 / expected, cells + 1
        else:
            rest = [rest[0] + expected, rest[1] + found[ids]]
            assert expected > 0 or found[ids] == 0
    if rest[0] >= 5:
        statistic, cells = statistic + (rest[1] - rest[0]) ** 2 / rest[0], cells + 1
    freedom = cells - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.29 * (2 / (9 * freedom)) ** 0.5) ** 3  # of 1 in 2000: Wilson, Hilferty
    assert cells > 20 and statistic < limit, (statistic, limit)


def test_a_seed_gives_the_same_text_where_the_draft_does_not_draw() -> None:
    decoder = _decoder()
    for seed, prompt in enumerate(_prompts(4)):
        options = SamplingOptions(temperature=0.4, top_p=0.9, seed=seed)
        expected = list(Generation(decoder, prompt, options, [2], 40))
        assert list(SpeculativeGeneration(decoder, prompt, options, NgramDraft(), 6, [2], 40)) == expected


@pytest.mark.parametrize("rows", [4, 7])
def test_a_draft_with_another_padding_of_the_same_vocabulary(rows: int) -> None:
    """Rows beyond the model's are not proposed; where the draft has fewer, its distribution is 0 there."""
    sampler = Sampler(SamplingOptions(temperature=2.0, seed=4))
    proposal = ModelDraft(_Chain(2, rows), 5).propose([0], 20, sampler)
    assert len(proposal.token_ids) == 20 and max(proposal.token_ids) == min(rows, 5) - 1
    for drawn_from_V in proposal.drawn_from:
        assert drawn_from_V.shape == (5,) and abs(drawn_from_V.sum() - 1) < 1e-12


def test_what_cannot_be_verified_is_refused() -> None:
    with pytest.raises(UsageError, match="last token alone"):
        SpeculativeGeneration(_decoder(32, last_logits_only=True), [1], GREEDY, NgramDraft(), 8)
    with pytest.raises(UsageError, match="draft-tokens is 0"):
        SpeculativeGeneration(_decoder(32), [1], GREEDY, NgramDraft(), 0)
    with pytest.raises(UsageError, match="headless"):
        ModelDraft(_decoder(32, headless=True), VOCAB)
