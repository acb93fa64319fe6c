"""The bodies of OpenAI's `/v1/chat/completions` and `/v1/completions`, read strictly.

Every key is used, harmless for the reason given here, or refused by name: an answer that passes over what was asked
for is a wrong one. Source: the API reference of platform.openai.com, as of 2025.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar

from blockexport.models.strict_json import read_record, shown

MOST_STOPS = 4
LONGEST_STOP = 1000  # characters
MOST_LOGPROBS = 20
DEEPEST = 32  # lists and objects inside each other
MOST_MESSAGES = 2048


class BadRequest(Exception):
    """What is wrong with a request: a 4xx response in OpenAI's form."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code


@dataclass(frozen=True)
class StreamOptions:
    """`stream_options`. `include_obfuscation` would pad chunks against those who watch their sizes."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


@dataclass(frozen=True)
class CommonBody:
    """What both endpoints take. None is "not given", which is what null means to OpenAI's own server.

    `user`, `metadata`, `store`, `service_tier`, `safety_identifier` and `prompt_cache_key` say who asks and where it is
    kept or queued, and nothing about the answer: they are passed over. What would change the answer and is not done
    may only have the value that asks for nothing.
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # not OpenAI's, but what other servers take, too
    seed: int | None = None
    stop: Any = None  # text, or a list of texts
    n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Any = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        given = self.stop if isinstance(self.stop, list) else [] if self.stop is None else [self.stop]
        for one in given:
            if not isinstance(one, str) or not one or len(one) > LONGEST_STOP:
                raise BadRequest(f"stop holds {shown(one)}, and must be text of 1 to {LONGEST_STOP} characters", "stop")
        if len(given) > MOST_STOPS:
            raise BadRequest(f"stop is a list of {len(given)}, and may hold at most {MOST_STOPS}", "stop")
        return tuple(given)

    def check(self) -> None:
        """Raises BadRequest for what is out of range, and for what this server does not do."""
        _within("temperature", self.temperature, 0, 2)
        _within("top_p", self.top_p, 0, 1, above=True)
        _within("top_k", self.top_k, 0, 1 << 31)
        _within("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        _only("n", self.n, 1, "one answer is given to each request: send it several times, with other seeds")
        for name in ("frequency_penalty", "presence_penalty"):
            _only(name, getattr(self, name), 0, "penalties are not applied: leave it out")
        _only("logit_bias", self.logit_bias, {}, "logits are taken as they are, so leave it out")
        if self.stream_options is not None and not self.stream:
            raise BadRequest("stream_options is for streams: leave it out, or give stream: true", "stream_options")
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            raise BadRequest(
                "stream_options.include_obfuscation is true, and chunks are not padded here: leave it out",
                "stream_options",
            )
        _ = self.stops


@dataclass(frozen=True)
class Message:
    """One turn. What a model's answer holds beside its text, as clients send it back, may only be empty."""

    role: str
    content: Any = None  # text, or a list of parts
    name: str | None = None
    refusal: str | None = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None
    reasoning_content: Any = None


@dataclass(frozen=True)
class ChatBody(CommonBody):
    """`/v1/chat/completions`."""

    messages: tuple[Message, ...] = ()
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None  # of tools, of which there are none
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None  # a hint for speed
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    @property
    def most_tokens(self) -> tuple[str, int | None]:
        """The limit on the answer, and what it is called."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def logprobs_wanted(self) -> int | None:
        """As `AnswerRequest.top_logprobs`."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        """See `CommonBody`."""
        super().check()
        _within("top_logprobs", self.top_logprobs, 0, MOST_LOGPROBS)
        if self.top_logprobs is not None and not self.logprobs:
            raise BadRequest("top_logprobs needs logprobs: true", "top_logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise BadRequest("max_tokens is the old name of max_completion_tokens: give one of them", "max_tokens")
        if self.response_format not in (None, {"type": "text"}):
            raise BadRequest(
                'response_format may only be {"type": "text"}: answers are not constrained', "response_format"
            )
        for name in ("tools", "functions", "audio", "web_search_options", "reasoning_effort", "verbosity"):
            _only(name, getattr(self, name) or None, None, "this server has no such thing: leave it out")
        _one_of("tool_choice", self.tool_choice, (None, "none", "auto"))
        _one_of("function_call", self.function_call, (None, "none", "auto"))
        _one_of("modalities", self.modalities, (None, ["text"], ("text",)))
        if not 0 < len(self.messages) <= MOST_MESSAGES:
            raise BadRequest(f"messages holds {len(self.messages)}, and must hold 1 to {MOST_MESSAGES}", "messages")

    def conversation(self) -> list[dict[str, str]]:
        """The messages as a chat template takes them."""
        return [_turn(message, f"messages[{i}]") for i, message in enumerate(self.messages)]


@dataclass(frozen=True)
class CompletionBody(CommonBody):
    """`/v1/completions`."""

    prompt: Any = None  # text, or a list of ids
    max_tokens: int | None = None
    logprobs: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None

    @property
    def most_tokens(self) -> tuple[str, int | None]:
        """The limit on the answer, and what it is called; OpenAI's server gives 16 tokens when it is not asked."""
        return "max_tokens", 16 if self.max_tokens is None else self.max_tokens

    @property
    def logprobs_wanted(self) -> int | None:
        """As `AnswerRequest.top_logprobs`."""
        return self.logprobs

    def check(self) -> None:
        """See `CommonBody`."""
        super().check()
        _within("logprobs", self.logprobs, 0, MOST_LOGPROBS)
        _only("best_of", self.best_of, 1, "one answer is made for each request: leave it out")
        _only("echo", self.echo or None, None, "the prompt is not given back, so leave it out")
        _only("suffix", self.suffix or None, None, "text is not filled in before another: leave it out")
        if self.prompt is None:
            raise BadRequest("prompt is missing: give text, or a list of token ids", "prompt")

    def prompt_given(self) -> str | list[int]:
        """Text, or token ids."""
        given = self.prompt
        if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):  # a batch of one
            given = given[0]
        if isinstance(given, str):
            return given
        if not isinstance(given, list) or not all(type(one) is int for one in given):
            raise BadRequest(
                "prompt must be one text, or one list of token ids: send a request for each of several prompts",
                "prompt",
            )
        return given


Body = TypeVar("Body", bound=CommonBody)


def read_body(kind: type[Body], content: bytes) -> Body:
    """The body of a request, checked.

    Raises:
        BadRequest: it is no JSON, or a value is not what it may be; the message and `param` name it.
    """
    try:
        value = json.loads(
            content.decode("utf-8"), parse_constant=_no_constant, parse_int=_whole, object_pairs_hook=_object
        )
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON ({error}): send one object in UTF-8") from error
    _require_shallow(value)
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"the body holds {error.object[error.start]!r}, half of a character: send whole ones"
        ) from error
    if not isinstance(value, dict):
        raise BadRequest(f"the body is {shown(value)}, and must be an object")
    try:
        body = read_record(kind, value, "")
    except ValueError as error:
        said = str(error)
        raise BadRequest(said.replace("it lacks the key", "the body lacks the key"), _named(said)) from error
    body.check()
    return body


def _named(said: str) -> str | None:
    """The field that a message of `read_record` is about: the first word, or the key in quotes."""
    if " the key '" in said or " unknown key '" in said:
        return said.split("'")[1]
    return said.split(" ", 1)[0] or None


def _whole(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError(f"{digits[:20]}... is too large a number")
    return int(digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON's")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} stands twice in one object")
    return made


def _require_shallow(value: Any) -> None:
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise BadRequest(f"the body is more than {DEEPEST} lists and objects deep: send less nested JSON")
        inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level, depth = [one for values in inside for one in values], depth + 1


def _turn(message: Message, where: str) -> dict[str, str]:
    role = "system" if message.role == "developer" else message.role
    if role not in ("system", "user", "assistant"):
        raise BadRequest(
            f"{where}.role is {shown(role)}, and must be system, developer, user or assistant", f"{where}.role"
        )
    for name in ("refusal", "annotations", "audio", "function_call", "tool_calls", "tool_call_id", "reasoning_content"):
        if getattr(message, name):
            raise BadRequest(f"{where}.{name} is given, and turns are text alone: leave it out", f"{where}.{name}")
    if message.name is not None:
        raise BadRequest(f"{where}.name is given, and templates here know no names: leave it out", f"{where}.name")
    if message.content is None:
        raise BadRequest(f"{where}.content is missing: give text", f"{where}.content")
    return {"role": role, "content": _content(message.content, f"{where}.content")}


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"{where} is {shown(content)}, and must be text or a list of parts", where)
    for part in content:
        if not (isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text"):
            raise BadRequest(f'{where} holds {shown(part)}: only parts {{"type": "text", "text": ...}} are read', where)
        if not isinstance(part["text"], str):
            raise BadRequest(f"{where} holds a text that is {shown(part['text'])}, and must be text", where)
    return "".join(part["text"] for part in content)


def _within(name: str, value: float | None, least: float, most: float, *, above: bool = False) -> None:
    if (value is not None and not (least < value if above else least <= value)) or (value is not None and value > most):
        raise BadRequest(f"{name} is {value}, and must be {'above ' if above else ''}{least} to {most}", name)


def _only(name: str, value: Any, neutral: Any, remedy: str) -> None:
    if value is not None and value != neutral:
        raise BadRequest(f"{name} is {shown(value)}: {remedy}", name)


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise BadRequest(f"{name} is {shown(value)}: this server has no such thing: leave it out", name)
