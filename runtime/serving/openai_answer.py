"""What OpenAI's clients are answered with: whole objects, chunks of a stream, and errors."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blockexport.runtime.serving.request import Ending, Logprobs, NewToken

TokenBytes = Callable[[int], bytes]

FINISH = {Ending.STOP: "stop", Ending.LENGTH: "length"}


@dataclass
class Shape:
    """One answer in OpenAI's form.

    Attributes:
        chat: of `/v1/chat/completions`, and not of `/v1/completions`.
        model: the name that the client gave.
        token_bytes: the bytes of a token.
        prompt_tokens: of the prompt.
    """

    chat: bool
    model: str
    token_bytes: TokenBytes
    prompt_tokens: int
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, text: str, tokens: Sequence[NewToken], why: Ending) -> dict[str, Any]:
        """The answer in one object."""
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        usage = self.usage(len(tokens))
        return self._object(said, self._logprobs(tokens), FINISH[why], streamed=False) | {"usage": usage}

    def begin(self) -> list[dict[str, Any]]:
        """What a stream begins with."""
        return [self._object({"delta": {"role": "assistant", "content": ""}}, None, None)] if self.chat else []

    def piece(self, text: str, tokens: Sequence[NewToken]) -> dict[str, Any]:
        """Some of the text."""
        said: dict[str, Any] = {"delta": {"content": text}} if self.chat else {"text": text}
        return self._object(said, self._logprobs(tokens), None)

    def finish(self, why: Ending) -> dict[str, Any]:
        """The last chunk with a choice in it."""
        return self._object({"delta": {}} if self.chat else {"text": ""}, None, FINISH[why])

    def tally(self, new_tokens: int) -> dict[str, Any]:
        """The chunk after it, for those who ask for `include_usage`."""
        return self._object({}, None, None) | {"choices": [], "usage": self.usage(new_tokens)}

    def usage(self, new_tokens: int) -> dict[str, int]:
        """Tokens of the prompt, of the answer, and of both."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": new_tokens,
            "total_tokens": self.prompt_tokens + new_tokens,
        }

    def _object(
        self, said: Mapping[str, Any], logprobs: Any, finish: str | None, *, streamed: bool = True
    ) -> dict[str, Any]:
        kind = f"chat.completion{'.chunk' if streamed else ''}" if self.chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, **said, "logprobs": logprobs, "finish_reason": finish}],
        }

    def _logprobs(self, tokens: Sequence[NewToken]) -> dict[str, Any] | None:
        known = [(one.token_id, one.logprobs) for one in tokens if one.logprobs is not None]
        if not known:
            return None
        return self._chat_logprobs(known) if self.chat else self._text_logprobs(known)

    def _chat_logprobs(self, known: Sequence[tuple[int, Logprobs]]) -> dict[str, Any]:
        content = [
            {**self._entry(i, one.chosen), "top_logprobs": [self._entry(*other) for other in one.top]}
            for i, one in known
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        spelt = self.token_bytes(token_id)
        return {"token": spelt.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(spelt)}

    def _text_logprobs(self, known: Sequence[tuple[int, Logprobs]]) -> dict[str, Any]:
        words = [self.token_bytes(i).decode("utf-8", "replace") for i, _ in known]
        return {
            "tokens": words,
            "token_logprobs": [_finite(one.chosen) for _, one in known],
            "top_logprobs": [
                {self.token_bytes(i).decode("utf-8", "replace"): _finite(value) for i, value in one.top}
                for _, one in known
            ],
            "text_offset": [sum(map(len, words[:i])) for i in range(len(words))],
        }


def _finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI gives this for what is as good as impossible."""
    return max(logprob, -9999.0)


def error_body_bytes(message: str) -> bytes:
    """One of the server's own, as a response holds it."""
    return json.dumps(error_body(message, "server_error")).encode()


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
