"""The real Triton server, from `nvidia-pytriton`, on what `blockexport triton` writes: `make .venv/.with-triton`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from blockexport.cli.main import main
from blockexport.runtime.open import open_decoder
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
from blockexport.runtime.text.generate import Generation
from blockexport.runtime.text.sampling import SamplingOptions
from tests.support import absent

ENVIRONMENT = Path(sys.prefix) / "triton"
PROMPTS = ("Once upon a time", "Lily and Tom", "The dog", "One day, a big", "There was a", "In the park", "Sara")


@pytest.fixture(scope="module")
def server(judged_stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that has the text model loaded, two rows of it."""
    found = sorted(ENVIRONMENT.glob("lib/python*/site-packages/pytriton/tritonserver"))
    if not found:
        absent("Triton's server is not installed (make .venv/.with-triton)", "BLOCKEXPORT_REQUIRE_TRITON")
    repository, place = tmp_path_factory.mktemp("repository"), found[0]
    assert main(["triton", str(judged_stories), "-o", str(repository), "--name", "stories", "--rows", "2", "-q"]) == 0
    libraries = [sysconfig.get_config_var("LIBDIR"), str(place.parent.parent / "nvidia_pytriton.libs")]
    command: list[str | Path] = [
        place / "bin" / "tritonserver",
        "--model-repository",
        repository,
        "--backend-directory",
        place / "backends",
    ]
    more = [
        "--model-control-mode",
        "explicit",
        "--load-model",
        "stories",
        "--http-port",
        str(_free_port()),
        "--allow-grpc",
        "false",
    ]
    more += ["--allow-metrics", "false", "--exit-timeout-secs", "3", "--http-address", "127.0.0.1"]
    environment = {
        **os.environ,
        "PATH": f"{ENVIRONMENT / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join(libraries),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("PYTHONPATH", None)
    log = tmp_path_factory.mktemp("log") / "log"
    with log.open("wb") as said:
        process = subprocess.Popen([*command, *more], stdout=said, stderr=said, env=environment, start_new_session=True)
        try:
            yield _address(process, log)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    """The server takes no 0, so another program may be faster."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(1200):
        said = log.read_text(errors="replace")
        started = re.search(r'"Started HTTPService at ([\d.]+:\d+)"', said)
        if started:
            return f"http://{started[1]}/v2"
        assert process.poll() is None, said
        time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace"))


def asked(
    server: str, prompt: str, *, stream: bool = False, chat: bool = False, **parameters: object
) -> list[dict[str, Any]]:
    """The responses to a request; the last names an error where there was one."""
    body = {"text_input": prompt, "stream": stream, "chat": chat, "sampling_parameters": json.dumps(parameters)}
    url, told = f"{server}/models/stories/generate_stream", []
    with httpx2.stream("POST", url, json=body, timeout=60) as response:
        told = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data: ")]
    return told


def alone(bundle: Path, prompt: str, count: int) -> str:
    """The greedy answer of our own loop."""
    tokenizer = BundleTokenizer(bundle)
    ids = tokenizer.encode(prompt)
    generation = Generation(open_decoder(bundle), ids, SamplingOptions(), tokenizer.stop_ids, count)
    return tokenizer.decode(list(generation), ids)


def test_an_answer_comes_in_pieces_or_whole(server: str, judged_stories: Path) -> None:
    pieces = asked(server, PROMPTS[0], stream=True, max_tokens=24, temperature=0)
    whole = asked(server, PROMPTS[0], max_tokens=24, temperature=0)
    assert len(pieces) > 12 and len(whole) == 1
    assert (
        "".join(one["text_output"] for one in pieces)
        == whole[0]["text_output"]
        == alone(judged_stories, PROMPTS[0], 24)
    )
    assert [one["finish_reason"] for one in pieces] == [""] * (len(pieces) - 1) + ["length"]


def test_many_at_once_are_each_what_they_are_alone(server: str, judged_stories: Path) -> None:
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda prompt: asked(server, prompt, max_tokens=40, temperature=0), PROMPTS))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert answer[-1]["text_output"] == alone(judged_stories, prompt, 40)


def test_a_seed_and_a_stop_string(server: str) -> None:
    one, two, other = (asked(server, PROMPTS[0], max_tokens=24, temperature=1, seed=seed) for seed in (7, 7, 8))
    assert one[-1]["text_output"] == two[-1]["text_output"] != other[-1]["text_output"]
    stopped = asked(server, PROMPTS[0], max_tokens=40, temperature=0, stop="Lily")[-1]
    assert stopped["finish_reason"] == "stop" and "Lily" not in stopped["text_output"]


@pytest.mark.parametrize(
    ("prompt", "parameters", "message"),
    [
        ("Once", {"max_tokens": 9999}, "max_tokens is 9999, and must be 1 to 512"),
        ("Once", {"temperature": 3}, "temperature"),
        ("Once", {"messages": []}, "without messages, prompt, model and stream"),
        ("word " * 2000, {}, "shorten it"),
    ],
)
def test_wrong_requests_are_refused_with_the_reason(
    server: str, prompt: str, parameters: dict[str, Any], message: str
) -> None:
    told = asked(server, prompt, **parameters)
    assert len(told) == 1 and message in told[0]["error"]
    assert asked(server, PROMPTS[0], max_tokens=1)[-1]["finish_reason"] == "length"


def test_clients_that_leave_free_their_rows(server: str) -> None:
    body = {"text_input": PROMPTS[0], "stream": True, "sampling_parameters": json.dumps({"max_tokens": 500})}
    for _ in range(6):  # three times the rows
        with httpx2.stream("POST", f"{server}/models/stories/generate_stream", json=body, timeout=60) as response:
            next(response.iter_lines())
    assert asked(server, PROMPTS[0], max_tokens=4)[-1]["finish_reason"] == "length"


def test_the_decoders_config_is_read(server: str) -> None:
    answer = httpx2.post(f"{server}/repository/models/stories-decoder/load", timeout=60)
    assert "unable to find backend library for backend 'onnxruntime'" in answer.text, "which the package lacks"
