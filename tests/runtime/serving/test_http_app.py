"""OpenAI's endpoints: whole answers and streams, logprobs, stop strings, keys, limits, and clients that go away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from blockexport.runtime.decoder import Decoder
from blockexport.runtime.open import open_decoder
from blockexport.runtime.serving.http_app import HttpLimits
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
from blockexport.runtime.text.generate import Generation
from blockexport.runtime.text.sampling import SamplingOptions
from tests.runtime.serving.served import NAME, chat, client_of, completion, with_template

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def folder(judged_stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_template(judged_stories, tmp_path_factory.mktemp("served") / "bundle")


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Decoder:
    return open_decoder(folder, threads=1)


@pytest.fixture(scope="module")
def client(folder: Path, decoder: Decoder) -> Iterator[TestClient]:
    with client_of(folder, decoder) as made:
        yield made


def alone(folder: Path, prompt: str, options: SamplingOptions, most: int, *, as_chat: bool = False) -> str:
    tokenizer = BundleTokenizer(folder)
    ids = tokenizer.encode_chat([{"role": "user", "content": prompt}]) if as_chat else tokenizer.encode(prompt)
    answer = list(Generation(open_decoder(folder, threads=1), ids, options, tokenizer.stop_ids, most))
    return tokenizer.decode(answer, [] if as_chat else ids)


def chunks(client: TestClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: {") for line in lines[:-1])
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_many_at_once_are_each_what_they_are_alone(folder: Path, decoder: Decoder) -> None:
    """Byte for byte: greedy and drawn, chats and texts, whole and streamed, on four rows."""
    prompts = ["Once upon a time", "The dog", "Lily went to the park and saw a", "A", "One day, a boy named Tim found"]
    asked = [
        (path, prompt, most, temperature)
        for path in (CHAT, TEXT)
        for prompt in prompts
        for most, temperature in ((12, 0.0), (40, 0.0), (25, 0.9))
    ]
    wanted = [
        alone(folder, prompt, SamplingOptions(heat, seed=most), most, as_chat=path == CHAT)
        for path, prompt, most, heat in asked
    ]

    def answer(client: TestClient, number: int) -> str:
        path, prompt, most, heat = asked[number]
        made = chat if path == CHAT else completion
        body = made(max_tokens=most, temperature=heat, seed=most)
        body |= {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
        if number % 2:
            said = [one["choices"][0] for one in chunks(client, path, body)]
            return "".join(one["delta"].get("content", "") if path == CHAT else one["text"] for one in said)
        choice = client.post(path, json=body).json()["choices"][0]
        return str(choice["message"]["content"] if path == CHAT else choice["text"])

    with client_of(folder, decoder) as client, ThreadPoolExecutor(12) as pool:
        got = list(pool.map(lambda number: answer(client, number), range(len(asked))))
    assert got == wanted


def test_a_whole_answer_has_openai_s_form(client: TestClient) -> None:
    said = client.post(CHAT, json=chat()).json()
    assert said["object"] == "chat.completion" and said["id"].startswith("chatcmpl-") and said["model"] == NAME
    (choice,) = said["choices"]
    assert choice["index"] == 0 and choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length"
    usage = said["usage"]
    assert usage["completion_tokens"] == 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + 4
    text = client.post(TEXT, json=completion()).json()
    assert text["object"] == "text_completion" and text["choices"][0]["text"] and text["choices"][0]["logprobs"] is None


def test_a_stream_has_openai_s_form(client: TestClient) -> None:
    said = chunks(client, CHAT, chat(stream_options={"include_usage": True}))
    assert {one["object"] for one in said} == {"chat.completion.chunk"} and len({one["id"] for one in said}) == 1
    assert said[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert said[-2]["choices"][0]["finish_reason"] == "length" and said[-2]["choices"][0]["delta"] == {}
    assert said[-1]["choices"] == [] and said[-1]["usage"]["completion_tokens"] == 4
    assert "usage" not in chunks(client, TEXT, completion())[-1]


def test_a_conversation_that_has_no_frame_goes_through_the_template(client: TestClient, folder: Path) -> None:
    """Two turns of the user in a row: as the template itself renders them, in a process of its own."""
    messages = [{"role": "user", "content": text} for text in ("Once upon", [{"type": "text", "text": "a time"}])]
    two = client.post(CHAT, json=chat(messages=messages, temperature=0)).json()["choices"][0]["message"]["content"]
    one = client.post(TEXT, json=completion(prompt="Once upon a time ")).json()["choices"][0]["text"]
    assert two == one.lstrip(" ")


def test_a_stop_string_ends_the_answer_before_it(client: TestClient) -> None:
    whole = client.post(TEXT, json=completion(max_tokens=60)).json()["choices"][0]["text"]
    stop = whole[40:45]
    said = client.post(TEXT, json=completion(max_tokens=60, stop=["never", stop])).json()
    assert said["choices"][0]["text"] == whole[: whole.index(stop)] and said["choices"][0]["finish_reason"] == "stop"
    assert said["usage"]["completion_tokens"] < 60
    streamed = chunks(client, TEXT, completion(max_tokens=60, stop=stop))
    assert "".join(one["choices"][0]["text"] for one in streamed) == whole[: whole.index(stop)]


def test_logprobs_are_those_of_the_model(client: TestClient, folder: Path) -> None:
    tokenizer, decoder = BundleTokenizer(folder), open_decoder(folder, threads=1)
    ids = tokenizer.encode("Once upon")
    expected_V = decoder.prefill(torch.tensor([ids]))[0, -1].double().log_softmax(-1)
    told = client.post(TEXT, json=completion(logprobs=2)).json()["choices"][0]["logprobs"]
    assert len(told["tokens"]) == len(told["text_offset"]) == 4
    assert told["token_logprobs"][0] == pytest.approx(float(expected_V.max()), abs=1e-6)
    assert sorted(told["top_logprobs"][0].values()) == pytest.approx(
        expected_V.topk(2).values.flip(0).tolist(), abs=1e-6
    )
    streamed = chunks(client, CHAT, chat(logprobs=True, top_logprobs=1, temperature=0))
    entries = [entry for one in streamed for entry in (one["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert len(entries) == 4
    assert all(
        bytes(entry["bytes"]).decode() == entry["token"] == entry["top_logprobs"][0]["token"] for entry in entries
    )


def test_a_seed_repeats_an_answer_and_no_seed_draws_another(client: TestClient) -> None:
    def drawn(**more: Any) -> str:
        body = completion(max_tokens=30, temperature=1.5, **more)
        return str(client.post(TEXT, json=body).json()["choices"][0]["text"])

    assert drawn(seed=-5) == drawn(seed=-5) != drawn(seed=6)
    assert drawn() != drawn()


def test_the_other_endpoints(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == [NAME]
    assert client.get(f"/v1/models/{NAME}").json()["id"] == NAME
    client.post(TEXT, json=completion())
    page = client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = dict(line.rsplit(" ", 1) for line in page.text.splitlines() if not line.startswith("#"))
    assert samples["blockexport_rows"] == "4" and int(samples['blockexport_answers_total{ending="length"}']) > 0
    first = [int(samples[name]) for name in samples if name.startswith("blockexport_first_token_seconds_bucket")]
    assert first == sorted(first) and first[-1] == int(samples["blockexport_first_token_seconds_count"]) > 0
    assert int(samples['blockexport_http_responses_total{status="200"}']) > 3


def test_a_key_is_asked_for_everywhere_but_at_health(folder: Path, decoder: Decoder) -> None:
    with client_of(folder, decoder, HttpLimits(api_key="s3same")) as client:
        assert client.get("/health").status_code == 200
        wrong = [None, "Bearer wrong", "Basic s3same", "s3same", "Bearer", "Bearer  "]
        for given in wrong:
            headers = {} if given is None else {"authorization": given}
            for path in ("/v1/models", "/metrics", "/nothing"):
                response = client.get(path, headers=headers)
                assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
        assert client.get("/v1/models", headers={"authorization": "Bearer s3same"}).status_code == 200


def test_a_full_queue_is_429_and_says_when_to_come_back(folder: Path, decoder: Decoder) -> None:
    with client_of(folder, decoder, rows=1, queue_limit=0) as client, ThreadPoolExecutor(6) as pool:
        long = completion(max_tokens=400)
        got = list(pool.map(lambda _: client.post(TEXT, json=long), range(6)))
    codes = [response.status_code for response in got]
    assert set(codes) == {200, 429}
    refused = next(response for response in got if response.status_code == 429)
    assert refused.headers["retry-after"] == "1" and refused.json()["error"]["code"] == "busy"


def test_a_request_whose_time_is_over_is_504(folder: Path, decoder: Decoder) -> None:
    with client_of(folder, decoder, seconds=0.02) as client:
        response = client.post(TEXT, json=completion(max_tokens=490))
        assert response.status_code == 504 and response.json()["error"]["code"] == "timed_out"
        said = chunks(client, TEXT, completion(max_tokens=490))
        assert said[-1]["error"]["code"] == "timed_out"


def test_a_server_s_limit_on_answers_holds(folder: Path, decoder: Decoder) -> None:
    with client_of(folder, decoder, most_new_tokens=6) as client:
        assert client.post(CHAT, json=chat(max_tokens=None)).json()["usage"]["completion_tokens"] == 6
        assert client.post(CHAT, json=chat(max_tokens=7)).json()["error"]["param"] == "max_tokens"
