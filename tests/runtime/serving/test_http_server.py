"""`blockexport serve` as a process: OpenAI's own client, connections, clients that leave or do not read, the end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import httpx2
import openai
import pytest

from blockexport.runtime.serving.http_app import EventResponse
from blockexport.runtime.serving.http_server import _limited
from tests.runtime.serving.served import completion, with_template

TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def folder(judged_stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_template(judged_stories, tmp_path_factory.mktemp("served") / "stories")


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address and the process, which ends with the test."""
    code = "from blockexport.cli.start import run; raise SystemExit(run())"
    command = [sys.executable, "-P", "-c", code, "serve", str(folder), "--port", "0", "--threads", "1", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"on (http://\S+)/v1 \((\d+) rows of 512 slots\)", line)
        assert found is not None, line + process.stderr.read()
        yield found[1], process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder, "--rows", "2", "--connections", "20", "--api-key", "s3same") as (where, _):
        yield where


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="s3same", max_retries=0)


def metrics(address: str) -> str:
    return httpx2.get(f"{address}/metrics", headers={"authorization": "Bearer s3same"}).text


def until(what: str, address: str) -> None:
    for _ in range(200):
        if what in metrics(address):
            return
        time.sleep(0.05)
    raise AssertionError(f"{what} never came:\n{metrics(address)}")


def test_openai_s_client_streams_and_gets_whole_answers(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["stories"]
    asked: dict[str, Any] = {"model": "stories", "messages": [{"role": "user", "content": "Once upon"}]}
    whole = client.chat.completions.create(**asked, max_tokens=30, temperature=0, logprobs=True, top_logprobs=2)
    text = whole.choices[0].message.content
    assert text and whole.usage is not None and whole.usage.completion_tokens == 30
    told = whole.choices[0].logprobs
    assert told is not None and told.content is not None and len(told.content) == 30
    stream = client.chat.completions.create(
        **asked, max_tokens=30, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage == whole.usage
    assert client.completions.create(model="stories", prompt="The dog", max_tokens=5).choices[0].text


def test_openai_s_client_understands_what_is_refused(client: openai.OpenAI, address: str) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature is 3") as refused:
        client.completions.create(model="stories", prompt="a", temperature=3)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4'"):
        client.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{address}/v1", api_key="other", max_retries=0).models.list()


def test_a_client_that_leaves_gives_its_row_back(client: openai.OpenAI, address: str) -> None:
    for _ in range(3):
        stream = client.completions.create(model="stories", prompt="Once", max_tokens=490, stream=True)
        next(iter(stream))
        stream.close()
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).completions.create(model="stories", prompt="Once", max_tokens=490)
    until("blockexport_requests_answering 0", address)
    assert 'ending="cancelled"' in metrics(address)


def test_no_more_connections_than_may_be_open(address: str) -> None:
    host, port = address.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(25)]
    said = []
    for one in idle:
        one.settimeout(0.5)
        try:
            said.append(one.recv(4096))
        except TimeoutError:
            said.append(b"")
    for one in idle:
        one.close()
    refused = [one for one in said if one]
    assert 5 <= len(refused) <= 8 and all(one.startswith(b"HTTP/1.1 503") for one in refused)
    body = json.loads(refused[0].partition(b"\r\n\r\n")[2])
    assert "connections are open" in body["error"]["message"]
    for _ in range(50):
        try:
            assert metrics(address)
            return
        except httpx2.HTTPError:
            time.sleep(0.05)
    raise AssertionError("there is no room again")


def test_a_connection_is_closed_when_it_is_silent_for_a_whole_while() -> None:
    """None that was answering at the last look, however long ago its last answer may have ended by now."""
    protocol: Any = object.__new__(_limited(5))
    protocol.cycle, protocol.loop, protocol.transport = None, MagicMock(), MagicMock()
    protocol.transport.is_closing.return_value = False
    answer = SimpleNamespace(response_complete=False)
    for protocol.cycle, ended in ((answer, False), (answer, True), (SimpleNamespace(response_complete=True), True)):
        answer.response_complete = ended
        protocol._end_if_silent()
        assert not protocol.transport.close.called
    protocol._end_if_silent()
    assert protocol.transport.close.called
    fresh: Any = object.__new__(_limited(5))
    fresh.cycle, fresh.loop, fresh.transport = None, MagicMock(), MagicMock()
    fresh.transport.is_closing.return_value = False
    fresh._end_if_silent()
    assert fresh.transport.close.called and not fresh.transport.abort.called
    fresh.transport.is_closing.return_value = True  # and what it was sent is not read
    fresh._end_if_silent()
    assert fresh.transport.abort.called


@pytest.mark.parametrize("reads", [0, 1, 5])
def test_a_client_that_does_not_read_is_given_up(reads: int) -> None:
    """From the headers on, or from a later part of the answer on."""
    sent: list[Any] = []

    async def events() -> AsyncIterator[str]:
        while True:
            yield "data: {}\n\n"

    async def send(message: Any) -> None:
        if len(sent) == reads:
            await asyncio.Event().wait()
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    stream = MagicMock()
    asyncio.run(asyncio.wait_for(EventResponse(stream, events(), 0.01)(scope, receive, send), 5))
    assert len(sent) == reads and stream.cancel.called


@pytest.mark.parametrize(
    "sent",
    [b"\r\n\r\n", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100_000, b"\x16\x03\x01\x02\x00" * 20,
     b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
     b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
    ids=lambda sent: str(sent[:20]),
)  # fmt: skip
def test_what_is_no_http_is_answered_and_closed(address: str, sent: bytes) -> None:
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        said = b""
        while part := connection.recv(4096):
            said += part
    assert said == b"" or re.match(rb"HTTP/1\.1 4\d\d ", said)
    assert httpx2.get(f"{address}/health").status_code == 200


def test_sigterm_lets_answers_end_and_takes_no_more(folder: Path) -> None:
    with served(folder, "--rows", "1") as (address, process), ThreadPoolExecutor(3) as pool:
        body = completion(max_tokens=400)
        wanted = httpx2.post(address + TEXT, json=body, timeout=60).json()["choices"]
        answers = [pool.submit(httpx2.post, address + TEXT, json=body, timeout=60) for _ in range(3)]  # two wait
        for _ in range(200):
            if "blockexport_requests_waiting 2" in httpx2.get(f"{address}/metrics").text:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert [one.result().json()["choices"] for one in answers] == [wanted] * 3
        assert process.wait(20) == 0
        with pytest.raises(httpx2.HTTPError):
            httpx2.get(f"{address}/health")


def test_an_end_that_takes_too_long_is_cut_short(folder: Path) -> None:
    with served(folder, "--rows", "1", "--drain", "1") as (address, process), ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(httpx2.post, address + TEXT, json=completion(max_tokens=490)) for _ in range(8)]
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        for one in answers:
            one.exception()


def test_an_address_that_is_taken_is_told(folder: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    from blockexport.cli.main import main

    port = address.rpartition(":")[2]
    assert main(["serve", str(folder), "--port", port]) == 2
    assert f"127.0.0.1 port {port} cannot be listened on" in capsys.readouterr().err
    assert main(["serve", str(folder), "--host", "no.such.host.invalid"]) == 2
    assert "choose another --port or --host" in capsys.readouterr().err


def test_what_cannot_be_served_is_told(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from blockexport.cli.main import main

    assert main(["serve", str(tmp_path)]) == 2
    assert main(["serve", str(folder), "--rows", "100000000"]) == 3
    assert "take fewer rows" in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "blockexport.runtime.serving.http_server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(folder)]) == 3
    assert "uvicorn is not installed, and serve needs it: pip install 'blockexport[serve]'" in capsys.readouterr().err
