"""Stages on Ray: what they compute, what is refused, an actor that is killed, replicas, and the end."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import torch

from blockexport import export_bundle, open_chain
from blockexport.cli.main import main
from blockexport.models.errors import CacheLostError, UsageError
from blockexport.models.exit_codes import ExitCode
from tests.runtime.serving.served import completion
from tests.support import shared_path

LAYERS = ("0:2", "2:4", "4:5")
KILLS = 20


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """stories260K in three stages."""
    folder = tmp_path_factory.mktemp("parts")
    made = [folder / f"part{number}" for number in range(len(LAYERS))]
    for place, layers in zip(made, LAYERS, strict=True):
        export_bundle(shared_path("models/stories260K"), place, layers=layers, max_sequence_length=512, compare=False)
    return made


@pytest.fixture(scope="module")
def ray() -> Any:
    return pytest.importorskip("ray", reason=f"Ray is not installed: `make {Path(sys.prefix).name}/.with-ray` does it")


@pytest.fixture(scope="module")
def threads(ray: Any) -> Iterator[int]:
    from blockexport.runtime.ray_chain import connected

    with connected("local", 2 * len(LAYERS), 1) as each:
        yield each


@pytest.mark.full
def test_a_chain_on_ray_is_the_chain_in_one_process(parts: list[Path], threads: int) -> None:
    """To the bit: rows of unequal length in groups, rows alone, after a reset, and with last logits alone."""
    from blockexport.runtime.ray_chain import RayChain

    ours, theirs = RayChain(parts, threads), open_chain(parts, threads=1)
    last = RayChain(parts, threads, last_logits_only=True)
    ids_BS = torch.randint(3, 512, (5, 40), generator=torch.Generator().manual_seed(0))
    lengths_B = torch.tensor([3, 9, 1, 7, 5])
    for rows in (5, 2):
        for decoder in (ours, theirs, last):
            decoder.reset(rows)
        got, wanted, told = (one.prefill(ids_BS[:rows, :9], lengths_B[:rows]) for one in (ours, theirs, last))
        for row, length in enumerate(lengths_B[:rows].tolist()):
            assert torch.equal(got[row, :length], wanted[row, :length])
            assert torch.equal(told[row, 0], wanted[row, length - 1])
        for column in range(9, 30):
            ids_B1 = ids_BS[:rows, column : column + 1]
            assert torch.equal(ours.step(ids_B1), theirs.step(ids_B1))
    alone = [one.prefill_rows(range(1, 2), ids_BS[:1, :4]) for one in (ours, theirs)]
    assert torch.equal(*alone)
    assert ours.lengths_B.tolist() == theirs.lengths_B.tolist() and ours.most_slots == theirs.most_slots
    for decoder in (ours, last):
        decoder.close()


@pytest.mark.full
def test_a_restarted_stage_refuses_to_go_on_without_its_cache(parts: list[Path], threads: int, ray: Any) -> None:
    from blockexport.runtime.ray_chain import RayChain

    decoder, ids = RayChain(parts, threads), torch.tensor([[5, 6, 7]])
    wanted = decoder.prefill(ids)
    ray.kill(decoder.stages[1], no_restart=False)

    def until_it_is_gone() -> None:  # Ray takes a moment to kill
        for _ in range(600):
            decoder.prefill(ids)
            time.sleep(0.01)

    with pytest.raises(CacheLostError):
        until_it_is_gone()
    with pytest.raises(CacheLostError):  # whether it is there again or not
        decoder.prefill(ids)
    decoder.reset(1)
    assert torch.equal(decoder.prefill(ids), wanted)
    decoder.close()


@pytest.mark.full
def test_another_bundle_on_the_machine_of_an_actor_is_refused(
    parts: list[Path], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from blockexport.runtime import ray_chain

    monkeypatch.setattr(ray_chain, "sha256_of", lambda path: "0" * 64)  # what the driver reads
    with pytest.raises(UsageError, match=r"part\d on .* is not the bundle .* Have the same bundles"):
        ray_chain.RayChain(parts, threads)


def test_what_ray_cannot_be_asked_for_is_told(
    judged_stories: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*arguments: object) -> tuple[int, str]:
        code = main(["serve", str(judged_stories), *map(str, arguments)])
        return code, capsys.readouterr().err

    code, words = said("--replicas", 2)
    assert code == ExitCode.WRONG_USE and "give --ray as well" in words
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "blockexport.runtime.ray_chain", raising=False)
    code, words = said("--ray", "local")
    assert code == ExitCode.NOT_JUDGED and "ray is not installed, and --ray needs it: pip install" in words


@contextmanager
def served(parts: list[Path], *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    code = "from blockexport.cli.start import run; raise SystemExit(run())"
    command = [sys.executable, "-P", "-c", code, "serve", *map(str, parts), "--port", "0", "--name", "stories"]
    process = subprocess.Popen(
        [*command, "--ray", "local", "--threads", "1", *arguments], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"on (http://\S+)/v1", line):
                break
        assert found is not None, "".join(lines)
        yield found[1], process
    finally:
        process.kill()
        process.communicate()


def actors(process: subprocess.Popen[str], name: str = "HostedStage") -> list[int]:
    """The processes of a server's actors."""
    parents, titles = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            titles[int(folder.name)] = (folder / "cmdline").read_text()
        except OSError:
            continue

    def descends(one: int) -> bool:
        return one == process.pid or (one in parents and descends(parents[one]))

    return sorted(one for one, title in titles.items() if title.startswith(f"ray::{name}") and descends(one))


def lives(process: int) -> bool:
    """Whether it runs; one that has ended may be listed until somebody asks how."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ask(address: str, **more: Any) -> str:
    response = httpx2.post(f"{address}/v1/completions", json=completion(**more), timeout=300)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


@pytest.mark.full
def test_a_stage_that_is_killed_in_mid_answer_changes_no_answer(ray: Any, parts: list[Path]) -> None:
    """Twenty times: those that were on their way are what they are alone, and so is the next one."""
    rng, prompts = random.Random(0), ["Once upon", "The dog", "Lily and", "One day"]
    with served(parts, "--rows", "3") as (address, process), ThreadPoolExecutor(len(prompts)) as pool:
        alone = [ask(address, prompt=prompt, max_tokens=40) for prompt in prompts]
        for _ in range(KILLS):
            before = actors(process)
            assert len(before) == len(LAYERS)
            coming = [pool.submit(ask, address, prompt=prompt, max_tokens=40) for prompt in prompts]
            time.sleep(rng.uniform(0.1, 1))
            os.kill(rng.choice(before), signal.SIGKILL)
            assert [one.result() for one in coming] == alone
            assert ask(address, prompt=prompts[0], max_tokens=40) == alone[0]
            assert len(set(actors(process)) & set(before)) == len(LAYERS) - 1
        page = httpx2.get(f"{address}/metrics").text
        assert 'blockexport_answers_total{ending="failed"}' not in page


@pytest.mark.full
@pytest.mark.parametrize("replicas", [1, 2])
def test_sigterm_lets_answers_end_and_leaves_no_actor(ray: Any, parts: list[Path], replicas: int) -> None:
    with (
        served(parts, "--drain", "300", "--replicas", str(replicas)) as (address, process),
        ThreadPoolExecutor(4) as pool,
    ):
        found = actors(process)
        assert len(found) == len(LAYERS) * replicas
        wanted = ask(address, max_tokens=30)
        coming = [pool.submit(ask, address, max_tokens=30) for _ in range(4)]
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        assert [one.result() for one in coming] == [wanted] * 4
        assert process.wait(120) == 0
        for _ in range(100):
            if not any(lives(one) for one in found):
                return
            time.sleep(0.1)
        raise AssertionError("an actor is left")


@pytest.mark.full
def test_two_replicas_answer_as_one(ray: Any, parts: list[Path]) -> None:
    with served(parts, "--rows", "2", "--replicas", "2", "--api-key", "s3same") as (address, _):
        assert httpx2.get(f"{address}/v1/models").status_code == 401
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="s3same", max_retries=0)

        def text(prompt: str) -> str:
            stream = client.completions.create(
                model="stories", prompt=prompt, max_tokens=40, temperature=0, stream=True
            )
            return "".join(chunk.choices[0].text for chunk in stream)

        alone = {prompt: text(prompt) for prompt in ("Once upon", "The dog", "Lily and")}
        with ThreadPoolExecutor(12) as pool:
            asked = [*alone] * 8
            assert list(pool.map(text, asked)) == [alone[prompt] for prompt in asked]
