"""The generation loop: prefill the prompt, then choose and append one token at a time until something ends it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray

from blockexport.models.errors import UsageError
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.text.sampling import Sampler, SamplingOptions

# Positions per prefill call: logits of a whole prompt of 8k tokens over 128k words would take 3.9 GiB.
PREFILL_CHUNK = 512


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop token"
    LENGTH = "length"
    CACHE_FULL = "cache full"


@dataclass(frozen=True)
class Drafted:
    """What a draft came to.

    Attributes:
        calls: of the decoder after the prompt.
        proposed: tokens that the draft proposed, of which `accepted` were the model's own choice.
        acceptance_rate: their share, 0 where none was proposed.
    """

    calls: int
    proposed: int
    accepted: int
    acceptance_rate: float


class Generation(Iterator[int]):
    """What continues a prompt: iterate over its token ids. Stop tokens end it and are not part of it.

    The decoder's cache is emptied first; nothing runs before the first iteration.

    Args:
        decoder: gives logits of token ids (not headless).
        prompt_ids: the prompt, 1 .. M tokens.
        options: how tokens are chosen.
        stop_ids: tokens that end the answer.
        max_new_tokens: the most tokens to give; None goes on to the last cache slot.

    Raises:
        UsageError: an empty prompt, one longer than the cache, an id out of the vocabulary, a headless decoder.

    Attributes:
        prompt_length: tokens of the prompt.
        count: tokens given so far.
        finish_reason: None until the iteration has ended.
        prefill_seconds: time the prompt took, with the first token chosen from it.
        decode_seconds: time of what came after it, in which `steps` tokens were chosen, one that ended it included.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt_ids: Sequence[int],
        options: SamplingOptions,
        stop_ids: Collection[int] = (),
        max_new_tokens: int | None = None,
    ) -> None:
        check_prompt(decoder, prompt_ids, max_new_tokens)
        self.prompt_length = len(prompt_ids)
        self.count = 0
        self.steps = 0
        self.finish_reason: FinishReason | None = None
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self._decoder = decoder
        self._sampler = Sampler(options)
        self._stop_ids = frozenset(stop_ids)
        self._limit = max_new_tokens
        self._pending = list(prompt_ids)  # not yet in the cache
        self._chosen: deque[int] = deque()  # and not yet given

    def __next__(self) -> int:
        if self.finish_reason is None and self.count == self._limit:
            self.finish_reason = FinishReason.LENGTH
        elif self.finish_reason is None and not self._chosen:
            if self._slots_left() < len(self._pending):
                self.finish_reason = FinishReason.CACHE_FULL
            else:
                self._choose()
        if self.finish_reason is not None:
            raise StopIteration
        token_id = self._chosen.popleft()
        if token_id in self._stop_ids:
            self.finish_reason = FinishReason.STOP
            raise StopIteration
        self.count += 1
        return token_id

    def _slots_left(self) -> int:
        filled = 0 if self.count == 0 else int(self._decoder.lengths_B[0])
        return self._decoder.max_sequence_length - filled

    def _choose(self) -> None:
        """Put the pending tokens into the cache, and choose what comes after them."""
        started = time.perf_counter()
        if self.count == 0:
            self._decoder.reset(1)
            chosen = [self._sampler.sample(append(self._decoder, self._pending)[-1])]
            self.prefill_seconds = time.perf_counter() - started
        else:
            chosen = self._run()
            self.decode_seconds += time.perf_counter() - started
            self.steps += len(chosen)
        self._chosen.extend(chosen)
        self._pending = chosen[-1:]

    def drafted(self) -> Drafted | None:
        """What a draft proposed, and how much of it was accepted; None where there is no draft."""
        return None

    def _run(self) -> list[int]:
        """The tokens that one call of the decoder gives after the prompt: at least one, the last not yet fed to it."""
        return [self._sampler.sample(append(self._decoder, self._pending)[-1])]


def append(decoder: Decoder, token_ids: Sequence[int]) -> NDArray[np.float32]:
    """Put tokens into a cache of one row; the logits [S, V] of the last call, [1, V] where it gives no others."""
    for start in range(0, len(token_ids), PREFILL_CHUNK):
        chunk_BS = torch.tensor([token_ids[start : start + PREFILL_CHUNK]], dtype=torch.int64)
        logits_BSV = decoder.prefill(chunk_BS)
    logits_SV: NDArray[np.float32] = logits_BSV[0].to(torch.float32).numpy()
    return logits_SV


def require_tokens_and_logits(decoder: Decoder, what: str) -> None:
    """Refuse a decoder that gives no logits of token ids.

    Raises:
        UsageError: it does; `what` is what needs them.
    """
    if decoder.interface.ends.is_stage:
        raise UsageError(f"a stage has some of a model's layers, and {what} needs all of them: open them as a chain")
    if decoder.interface.ends.pooling is not None:
        raise UsageError(
            f"an export with --task embed gives embeddings, not logits: {what} needs one made without it; "
            "blockexport.open_decoder runs this one"
        )
    if decoder.headless:
        raise UsageError(f"a headless export gives hidden states, not logits: {what} needs one made without --headless")


def check_prompt(decoder: Decoder, prompt_ids: Sequence[int], max_new_tokens: int | None) -> None:
    """Whether an answer can be begun. Raises UsageError: see `Generation`."""
    require_tokens_and_logits(decoder, "generate")
    if not prompt_ids:
        raise UsageError("the prompt has no tokens, and a model needs at least one to go on from: write something")
    slots = decoder.max_sequence_length
    if len(prompt_ids) > slots:
        raise UsageError(
            f"the prompt has {len(prompt_ids)} tokens and the cache {slots} slots: "
            f"{decoder.room_for('prompt', len(prompt_ids))}"
        )
    vocab_size = decoder.config.vocab_size
    for token_id in prompt_ids:
        if not 0 <= token_id < vocab_size:
            raise UsageError(
                f"token id {token_id} of the prompt is outside the model's vocabulary of {vocab_size}: the tokenizer "
                "belongs to another model"
            )
    if max_new_tokens is not None and max_new_tokens < 1:
        raise UsageError(f"max-new-tokens is {max_new_tokens} and must be at least 1")
