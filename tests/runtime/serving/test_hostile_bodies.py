"""Bodies that are malformed, out of range, hostile, or ask for what is not done: each gets a 4xx in OpenAI's form that
names the field, and the next request is answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from blockexport.runtime.open import open_decoder
from blockexport.runtime.serving.http_app import HttpLimits
from tests.runtime.serving.served import chat, client_of, completion, with_template

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Once"}


@pytest.fixture(scope="module")
def client(judged_stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = with_template(judged_stories, tmp_path_factory.mktemp("hostile") / "bundle")
    with client_of(folder, open_decoder(folder, threads=1), HttpLimits(body_bytes=100_000)) as made:
        yield made


def refused(client: TestClient, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert 10 < len(error["message"]) < 500
    return error


RAW: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"hello",
    "half an object": b'{"model": "stories"',
    "two objects": b'{"model": "stories"}{}',
    "a list": b"[]",
    "a number": b"7",
    "null": b"null",
    "text": b'"text"',
    "Latin-1": '{"model": "é"}'.encode("latin-1"),
    "UTF-16": json.dumps(chat()).encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(chat()).encode(),
    "zero bytes": b"\0" * 100,
    "NaN": b'{"model": "stories", "prompt": "a", "temperature": NaN}',
    "infinity": b'{"model": "stories", "prompt": "a", "temperature": -Infinity}',
    "a key twice": b'{"model": "stories", "model": "other", "prompt": "a"}',
    "10,000 digits": b'{"model": "stories", "prompt": "a", "seed": ' + b"9" * 10_000 + b"}",
    "deep lists": b'{"model": "stories", "prompt": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "deep objects": b'{"model": "stories", "metadata": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
    "forty lists": b'{"model": "stories", "metadata": ' + b"[" * 40 + b"]" * 40 + b"}",
    "half a character": b'{"model": "stories", "prompt": "\\ud800"}',
    "half a character in a key": b'{"model": "stories", "prompt": "a", "\\udfff": 1}',
    "half a character as the model": b'{"model": "\\ud800", "prompt": "a"}',
}


@pytest.mark.parametrize("kind", RAW)
def test_what_is_no_body_is_said_to_be_none(client: TestClient, kind: str) -> None:
    refused(client, TEXT, RAW[kind])


BOTH: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": 7}, "model"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"other": True}}, "other"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": [1]}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_p": "all"}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"top_k": 1 << 40}, "top_k"),
    ({"seed": 1.5}, "seed"),
    ({"seed": "7"}, "seed"),
    ({"seed": 1 << 64}, "seed"),
    ({"seed": -(1 << 63) - 1}, "seed"),
    ({"stop": 7}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a", None]}, "stop"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": "x" * 1001}, "stop"),
    ({"stop": {"a": 1}}, "stop"),
    ({"n": 2}, "n"),
    ({"n": 0}, "n"),
    ({"n": "1"}, "n"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"presence_penalty": -1}, "presence_penalty"),
    ({"logit_bias": {"50": 100}}, "logit_bias"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "4"}, "max_tokens"),
    ({"max_tokens": 1 << 62}, "max_tokens"),
    ({"max_tokens": 512}, "max_tokens"),  # with the prompt, more than the cache
    ({"an_option_of_tomorrow": 1}, "an_option_of_tomorrow"),
    ({"__class__": {}}, "__class__"),
]
ONLY_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "Once"}, "messages"),
    ({"messages": {"0": USER}}, "messages"),
    ({"messages": ["Once"]}, "messages[0]"),
    ({"messages": [USER, None]}, "messages[1]"),
    ({"messages": [{"content": "Once"}]}, "role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": 1, "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "a", "tool_call_id": "1"}]}, "messages[0].role"),
    ({"messages": [USER | {"name": "Bob"}]}, "messages[0].name"),
    ({"messages": [USER | {"weight": 1}]}, "weight"),
    ({"messages": [USER | {"tool_calls": [{}]}]}, "messages[0].tool_calls"),
    (
        {"messages": [USER | {"content": [{"type": "image_url", "image_url": "file:///etc/passwd"}]}]},
        "messages[0].content",
    ),
    ({"messages": [USER | {"content": [{"type": "text", "text": 7}]}]}, "messages[0].content"),
    ({"messages": [USER | {"content": [{"type": "text"}]}]}, "messages[0].content"),
    ({"messages": [USER | {"content": ["Once"]}]}, "messages[0].content"),
    ({"messages": [USER] * 2049}, "messages"),
    ({"messages": [USER | {"content": "tale " * 600}]}, "messages"),
    ({"max_completion_tokens": 5}, "max_tokens"),
    ({"max_tokens": None, "max_completion_tokens": 0}, "max_completion_tokens"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "alloy"}}, "audio"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"web_search_options": {"a": 1}}, "web_search_options"),
    ({"prompt": "Once"}, "prompt"),
]
ONLY_TEXT: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 7}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [[1], [2]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1, True]}, "prompt"),
    ({"prompt": [1.0]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [512]}, "prompt"),
    ({"prompt": [1 << 63]}, "prompt"),
    ({"prompt": [5] * 513}, "prompt"),
    ({"prompt": "tale " * 600}, "prompt"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"best_of": 2}, "best_of"),
    ({"echo": True}, "echo"),
    ({"suffix": "the end"}, "suffix"),
    ({"messages": [USER]}, "messages"),
]
ASKED = [
    *((CHAT, change, param) for change, param in (*BOTH, *ONLY_CHAT)),
    *((TEXT, change, param) for change, param in (*BOTH, *ONLY_TEXT)),
]


def test_there_are_more_than_a_hundred_kinds() -> None:
    assert len(RAW) + len(BOTH) + len(ONLY_CHAT) + len(ONLY_TEXT) > 120


@pytest.mark.parametrize(("path", "change", "param"), ASKED, ids=lambda value: str(value)[:50])
def test_a_value_that_is_refused_is_named(client: TestClient, path: str, change: dict[str, Any], param: str) -> None:
    body = chat() if path == CHAT else completion()
    error = refused(client, path, body | change)
    assert error["param"] == param, error
    assert param.rpartition(".")[2].partition("[")[0] in error["message"]


def test_a_body_that_is_too_long_is_not_read(client: TestClient) -> None:
    assert "97.66 KiB" in refused(client, TEXT, b" " * 100_001, 413)["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_another_content_type_is_refused(client: TestClient, kind: str | None) -> None:
    """What a page of another origin may send without asking."""
    headers = {} if kind is None else {"content-type": kind}
    response = client.post(CHAT, content=json.dumps(chat()), headers=headers)
    assert response.status_code == 415 and "application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("PUT", TEXT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/metrics", 405),
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/" + "a" * 5000, 404),
    ],
)
def test_another_path_or_method_is_refused(client: TestClient, method: str, path: str, status: int) -> None:
    response = client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_another_model_is_not_found(client: TestClient) -> None:
    error = refused(client, CHAT, chat(model="gpt-4o"), 404)
    assert error["param"] == "model" and error["code"] == "model_not_found" and "'stories'" in error["message"]


def test_what_asks_for_nothing_is_taken(client: TestClient) -> None:
    """Keys that say nothing about the answer, and those that may only ask for what is done anyway."""
    harmless: dict[str, Any] = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "n": 1}
    harmless |= {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "stop": None, "seed": None}
    plain = client.post(TEXT, json=completion()).json()["choices"]
    assert plain[0]["text"]
    assert client.post(TEXT, json=completion(**harmless, best_of=1, echo=False, suffix=None)).json()["choices"] == plain
    more: dict[str, Any] = {
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "none",
        "modalities": ["text"],
    }
    assert client.post(CHAT, json=chat(**harmless, **more)).status_code == 200
