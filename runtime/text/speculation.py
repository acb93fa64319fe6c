"""Generation that proposes several tokens and verifies them in one call of the decoder.

A draft proposes what might come next. The decoder is run on the pending token and the proposal together, which costs
little more than one step where steps wait for memory, and gives the logits after each of them. Tokens are then chosen
from left to right, until one is not what was proposed. Slots of what was refused stay filled, and no position sees them
before they are written again: `lengths_B` is set back.

The answer is distributed as without a draft. A proposed token x, drawn from the draft's distribution q where the model
has p, stays with the probability min(1, p(x)/q(x)), else one is drawn from max(p - q, 0) (Leviathan and others
2023, "Fast inference from transformers via speculative decoding"). A draft that does not draw has all of q at x, as has
any at temperature 0: then drawing from p and comparing with x is the same rule, and takes one random number for each
token, so that a seed gives the text that it gives without a draft.

Rounding: a call of several tokens rounds its logits in another way than single steps do. A choice that hangs on
the last bits may so be another one. It is always made from the logits of the call that verifies.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from blockexport.models.errors import UsageError
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.text.generate import Drafted, Generation, append, check_prompt
from blockexport.runtime.text.sampling import Sampler, SamplingOptions

NGRAM = "ngram"
LONGEST_NGRAM = 3  # tokens that have to occur again, at most
FIRST_LENGTH = 4  # tokens proposed at first; twice as many after a call that took all, as many as it took else


class Proposal(NamedTuple):
    """Tokens that might come next, and the distributions [V] they were drawn from; none where nothing was drawn."""

    token_ids: list[int]
    drawn_from: list[NDArray[np.float64]]


class Draft(Protocol):
    """What proposes tokens."""

    def propose(self, text: Sequence[int], count: int, sampler: Sampler) -> Proposal:
        """At most `count` tokens that might follow the ids `text`, which has only grown since the last call."""


class NgramDraft:
    """Prompt lookup: what followed the last occurrence of the longest suffix that has occurred before.

    Source: A. Saxena 2023, "Prompt lookup decoding".
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, ...], int] = {}  # where what follows them begins
        self._read = 1

    def propose(self, text: Sequence[int], count: int, sampler: Sampler) -> Proposal:
        """See `Draft`."""
        for end in range(self._read, len(text)):
            for length in range(1, min(LONGEST_NGRAM, end) + 1):
                self._seen[tuple(text[end - length : end])] = end
        self._read = max(self._read, len(text))
        for length in range(min(LONGEST_NGRAM, len(text)), 0, -1):
            if (start := self._seen.get(tuple(text[-length:]))) is not None:
                after = text[start:]  # a text that has begun to repeat itself is taken to go on doing so
                return Proposal([after[i % len(after)] for i in range(count)], [])
        return Proposal([], [])


class ModelDraft:
    """A smaller model with the same tokenizer.

    Args:
        decoder: runs it; its cache is emptied by a text that does not go on from the last one.
        vocab_size: the large model's. Tables of one tokenizer may be padded to several sizes.

    Raises:
        UsageError: it is headless.
    """

    def __init__(self, decoder: Decoder, vocab_size: int) -> None:
        check_prompt(decoder, [0], None)
        self._decoder = decoder
        self._vocab_size = vocab_size
        self._held: list[int] = []  # what its cache holds

    def propose(self, text: Sequence[int], count: int, sampler: Sampler) -> Proposal:
        """See `Draft`. Nothing once its cache is full, or for a token that it has no row for."""
        fed = self._common(text)
        pending, proposal = list(text[fed:]), Proposal([], [])
        count = min(count, self._decoder.max_sequence_length - len(text) + 1)
        if count < 1 or max(pending) >= self._decoder.config.vocab_size:
            return proposal
        if fed == 0:
            self._decoder.reset(1)
        self._decoder.lengths_B = self._decoder.lengths_B.new_tensor([fed])
        self._held = list(text)
        for _ in range(count):
            logits_V = append(self._decoder, pending)[-1, : self._vocab_size]
            if sampler.options.temperature == 0.0:
                token_id = sampler.sample(logits_V)
            else:
                drawn_from_V = sampler.probabilities(logits_V)
                token_id = sampler.draw(drawn_from_V)
                proposal.drawn_from.append(np.pad(drawn_from_V, (0, self._vocab_size - len(drawn_from_V))))
            proposal.token_ids.append(token_id)
            pending = [token_id]
        self._held += proposal.token_ids[:-1]
        return proposal

    def _common(self, text: Sequence[int]) -> int:
        """How many tokens of `text` its cache holds; one at least has to be run."""
        pairs = enumerate(zip(self._held, text[:-1], strict=False))
        return next((i for i, (held, now) in pairs if held != now), min(len(self._held), len(text) - 1))


class SpeculativeGeneration(Generation):
    """A generation with a draft: the same answer, sooner where the draft is right. See `Generation` for what is not
    described here.

    Args:
        draft: proposes tokens.
        most_tokens: the most that it proposes at a time.

    Raises:
        UsageError: the decoder gives the logits of last tokens alone; or as `Generation`.

    Attributes:
        calls: of the decoder after the prompt.
        proposed: tokens that the draft proposed, of which `accepted` were the model's own choice.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt_ids: Sequence[int],
        options: SamplingOptions,
        draft: Draft,
        most_tokens: int,
        stop_ids: Collection[int] = (),
        max_new_tokens: int | None = None,
    ) -> None:
        super().__init__(decoder, prompt_ids, options, stop_ids, max_new_tokens)
        if decoder.one_a_row:
            raise UsageError(
                "the bundle gives the logits of the last token alone, and a draft is verified by those of several: "
                "generate without --draft, or export again with --logits all"
            )
        if most_tokens < 1:
            raise UsageError(f"draft-tokens is {most_tokens} and must be at least 1")
        self.calls = self.proposed = self.accepted = 0
        self._draft = draft
        self._most = most_tokens
        self._length = min(FIRST_LENGTH, most_tokens)
        self._text = list(prompt_ids)

    def __next__(self) -> int:
        token_id = super().__next__()
        self._text.append(token_id)
        return token_id

    def drafted(self) -> Drafted:
        """See `Generation.drafted`."""
        rate = self.accepted / self.proposed if self.proposed else 0.0
        return Drafted(self.calls, self.proposed, self.accepted, rate)

    def _run(self) -> list[int]:
        proposal = self._draft.propose(self._text, self._room(), self._sampler)
        filled_B = self._decoder.lengths_B
        logits_SV = append(self._decoder, self._pending + proposal.token_ids)
        chosen = self._verified(proposal, logits_SV)
        self._decoder.lengths_B = filled_B + len(chosen)  # the pending token, and those that stay
        proposed, accepted = len(proposal.token_ids), len(chosen) - 1
        if proposed:
            self._length = min(2 * proposed, self._most) if accepted == proposed else max(accepted, 1)
        self.calls += 1
        self.proposed += proposed
        self.accepted += accepted
        return chosen

    def _room(self) -> int:
        """Tokens to propose: with the one that is chosen after them, no more than are wanted, or have slots."""
        room = min(self._length, self._slots_left() - len(self._pending))
        return room if self._limit is None else min(room, self._limit - self.count - 1)

    def _verified(self, proposal: Proposal, logits_SV: NDArray[np.float32]) -> list[int]:
        """The proposed tokens that stay, and the one after them: none beyond a token that ends the answer."""
        chosen: list[int] = []
        for i, logits_V in enumerate(logits_SV):
            proposed = proposal.token_ids[i] if i < len(proposal.token_ids) else None
            if proposed is not None and proposal.drawn_from:
                chosen.append(_kept_or_other(self._sampler, logits_V, proposed, proposal.drawn_from[i]))
            else:
                chosen.append(self._sampler.sample(logits_V))
            if chosen[-1] != proposed or proposed in self._stop_ids:
                break
        return chosen


def _kept_or_other(
    sampler: Sampler, logits_V: NDArray[np.float32], proposed: int, drawn_from_V: NDArray[np.float64]
) -> int:
    """The proposed token, or one drawn from what the model has more of than the draft: never the same one then."""
    wanted_V = sampler.probabilities(logits_V)
    if sampler.uniform() * drawn_from_V[proposed] < wanted_V[proposed]:
        return proposed
    return sampler.draw(np.maximum(wanted_V - drawn_from_V, 0.0))
