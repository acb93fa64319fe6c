"""Prompts of a bundle's model: text or a conversation into tokens, and the sampling that was asked for."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from blockexport.models.errors import UsageError
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.serving.answer_text import AnswerText
from blockexport.runtime.serving.openai_body import BadRequest, ChatBody, CompletionBody
from blockexport.runtime.serving.request import AnswerRequest
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
from blockexport.runtime.text.chat_turns import read_chat_turns

_SEEDS = (1 << 64) - 1  # OpenAI's seeds may be negative


class Prompts:
    """What of a request's body becomes tokens.

    Args:
        folder: the bundle.
        decoder: of its model.
        seconds: see `AnswerRequest`; for all.
        most_new_tokens: of any answer.

    Raises:
        UsageError: the bundle has no tokenizer, or one that is damaged.
    """

    def __init__(self, folder: Path, decoder: Decoder, seconds: float | None, most_new_tokens: int | None) -> None:
        self.tokenizer = BundleTokenizer(folder)
        # To render the template itself takes a process of its own each time.
        self._frame = read_chat_turns(folder)
        self._decoder = decoder
        self._seconds, self._most = seconds, most_new_tokens

    def read(self, body: ChatBody | CompletionBody) -> tuple[AnswerRequest, AnswerText]:
        """The request that a body makes, and what turns its tokens into text. May take as long as a template does.

        Raises:
            BadRequest: the prompt is empty, too long, or none that the template or the tokenizer takes.
        """
        name = "messages" if isinstance(body, ChatBody) else "prompt"
        try:
            prompt_ids = self._prompt_ids(body)
        except UsageError as error:
            raise BadRequest(str(error), name) from error
        request = self._request(body, name, prompt_ids)
        after = [] if isinstance(body, ChatBody) else prompt_ids  # a prompt is gone on from, an answer stands by itself
        return request, AnswerText(self.tokenizer.stream(after), body.stops)

    def _prompt_ids(self, body: ChatBody | CompletionBody) -> list[int]:
        if isinstance(body, ChatBody):
            messages = body.conversation()
            if self._frame is not None and self._frame.fits(messages):
                return self.tokenizer.encode(self._frame.render(messages), add_special_tokens=False)
            return self.tokenizer.encode_chat(messages)
        prompt = body.prompt_given()
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def _request(self, body: ChatBody | CompletionBody, name: str, prompt_ids: Sequence[int]) -> AnswerRequest:
        self._check_prompt(name, prompt_ids)
        seed = secrets.randbits(64) if body.seed is None else body.seed & _SEEDS
        return AnswerRequest(
            prompt_ids=tuple(prompt_ids),
            sampling=self.tokenizer.sampling_options(body.temperature, body.top_k, body.top_p, seed),
            stop_ids=self.tokenizer.stop_ids,
            max_new_tokens=self._limit(body, len(prompt_ids)),
            top_logprobs=body.logprobs_wanted,
            seconds=self._seconds,
        )

    def _check_prompt(self, name: str, prompt_ids: Sequence[int]) -> None:
        slots, vocab_size = self._decoder.max_sequence_length, self._decoder.config.vocab_size
        if not prompt_ids:
            raise BadRequest(f"{name} has no tokens, and a model needs at least one to go on from", name)
        if len(prompt_ids) > slots:
            raise BadRequest(
                f"{name} has {len(prompt_ids)} tokens, and prompt and answer have {slots} together: shorten it",
                name,
                code="context_length_exceeded",
            )
        outside = next((one for one in prompt_ids if not 0 <= one < vocab_size), None)
        if outside is not None:
            raise BadRequest(f"{name} holds the token id {outside}, and the vocabulary has {vocab_size}", name)

    def _limit(self, body: ChatBody | CompletionBody, prompt: int) -> int | None:
        name, asked = body.most_tokens
        if asked is None:
            return self._most
        most = self._decoder.max_sequence_length if self._most is None else self._most
        if not 1 <= asked <= most:
            raise BadRequest(f"{name} is {asked}, and must be 1 to {most}", name)
        if isinstance(body, CompletionBody) and body.max_tokens is None:
            return asked  # not asked for, so that an end of the cache before it is no error
        room = self._decoder.max_sequence_length - prompt + 1  # the last token takes no slot
        if asked > room:
            raise BadRequest(
                f"{name} is {asked}, and after a prompt of {prompt} tokens there is room for {room}: ask for fewer",
                name,
                code="context_length_exceeded",
            )
        return asked
