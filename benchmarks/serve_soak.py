"""Many clients on `blockexport serve`: no answer lost or mixed, times to the first token and between tokens, memory.

    python benchmarks/serve_soak.py BUNDLE... [--clients 200] [--seconds 600] [--rows 8] [--vocabulary 512]

Each client asks, streamed and greedy, for the continuation of a few token ids, over and over; one in ten leaves in the
middle, one in twenty reads nothing for a while. Every answer is compared with the one that the same prompt had alone,
before the others came. `--ray` and `--replicas` are serve's; `--kills N` ends N times on the way one of Ray's actors,
chosen at random, when all of them are there. `--throughput` measures the tokens per second of 1 to `--rows` clients
instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import httpx2

PROMPTS = 40
HEADERS = {"content-type": "application/json"}


@dataclass
class Tally:
    """What was seen."""

    whole: int = 0
    left: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Asked:
    """A prompt, and how long its answer may be."""

    ids: tuple[int, ...]
    most: int

    def body(self, model: str) -> bytes:
        return json.dumps(
            {"model": model, "prompt": self.ids, "max_tokens": self.most, "temperature": 0, "stream": True}
        ).encode()


async def answer(client: httpx2.AsyncClient, asked: Asked, tally: Tally, leaves: bool, sleeps: bool) -> str | None:
    """The text of one streamed answer; None where it was left, or refused."""
    started = last = time.perf_counter()
    text, chunks, done = "", 0, False
    async with client.stream("POST", "/v1/completions", content=asked.body("model"), headers=HEADERS) as response:
        if response.status_code == 429:
            tally.refused += 1
            return None
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                done = done or line == "data: [DONE]"
                continue
            now = time.perf_counter()
            (tally.between if chunks else tally.first).append(now - (last if chunks else started))
            last, chunks = now, chunks + 1
            text += json.loads(line[6:])["choices"][0]["text"]
            if leaves and chunks > asked.most // 3:
                tally.left += 1
                return None
            if sleeps and chunks == 1:
                await asyncio.sleep(2)
                last = time.perf_counter()
    if not done:
        tally.wrong.append(f"an answer to {asked.ids} has no end")
    return text


async def one_client(
    client: httpx2.AsyncClient, asked: list[Asked], alone: list[str], tally: Tally, seed: int, until: float
) -> None:
    rng = random.Random(seed)
    while time.perf_counter() < until:
        number = rng.randrange(len(asked))
        try:
            text = await answer(client, asked[number], tally, rng.random() < 0.1, rng.random() < 0.05)
        except (httpx2.HTTPError, KeyError) as error:
            tally.wrong.append(f"{asked[number].ids}: {error!r}")
            continue
        if text is None:
            await asyncio.sleep(rng.random())
        elif text == alone[number]:
            tally.whole += 1
        else:
            tally.wrong.append(f"{asked[number].ids}: {text!r} instead of {alone[number]!r}")


async def watch(process: subprocess.Popen[str], seen: list[int], until: float) -> None:
    """The server's memory, in KiB, every few seconds."""
    while time.perf_counter() < until:
        status = await asyncio.to_thread(Path(f"/proc/{process.pid}/status").read_text)
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        seen.append(int(found[1]) if found else 0)
        await asyncio.sleep(2)


def actors(server: int) -> list[int]:
    """The processes of a server's stages on Ray."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    parents = {int(pid): int(parent) for pid, parent, _ in rows}

    def descends(one: int) -> bool:
        return one == server or (one in parents and descends(parents[one]))

    return [int(pid) for pid, _, title in rows if title.startswith("ray::HostedStage") and descends(int(pid))]


async def kill_some(server: int, kills: int, seconds: float) -> None:
    """One actor after the other, when all that there were at first are there again."""
    rng, whole, done, until = random.Random(1), len(actors(server)), 0, time.perf_counter() + seconds
    while done < kills and time.perf_counter() < until:
        await asyncio.sleep(rng.uniform(1, 3))
        if len(living := await asyncio.to_thread(actors, server)) == whole:
            os.kill(rng.choice(living), signal.SIGKILL)
            done += 1
    if kills:
        print(f"{done} of {whole} actors killed")


async def soak(address: str, process: subprocess.Popen[str], options: argparse.Namespace) -> bool:
    rng = random.Random(0)
    asked = [
        Asked(
            tuple(rng.randrange(3, options.vocabulary) for _ in range(rng.choice([1, 5, 20, 70]))), rng.randint(5, 60)
        )
        for _ in range(PROMPTS)
    ]
    limits = httpx2.Limits(max_connections=options.clients + 10)
    tally, memory = Tally(), list[int]()
    async with httpx2.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        alone = [await answer(client, one, Tally(), False, False) or "" for one in asked]
        until = time.perf_counter() + options.seconds
        jobs = [one_client(client, asked, alone, tally, seed, until) for seed in range(options.clients)]
        kills = kill_some(process.pid, options.kills, options.seconds - 10)
        await asyncio.gather(*jobs, watch(process, memory, until), kills)
        page = (await client.get("/metrics")).text
    print(f"{options.clients} clients, {options.seconds} s: {tally.whole} whole answers, {tally.left} left, "
          f"{tally.refused} refused with 429, {len(tally.wrong)} wrong")  # fmt: skip
    for name, times in (("first token", tally.first), ("between tokens", tally.between)):
        print(f"{name}: p50 {1e3 * median(times):.1f} ms, p99 {1e3 * quantiles(times, n=100)[-1]:.1f} ms, "
              f"{len(times)} of them")  # fmt: skip
    warm = memory[len(memory) // 5 :]
    growth = max(warm) / min(warm) - 1
    print(f"resident memory: {min(warm) >> 10} to {max(warm) >> 10} MiB after warming up ({100 * growth:.1f} %)")
    print(
        *(line for line in page.splitlines() if re.match(r"blockexport_(answers|new_tokens|replays|turns)", line)),
        sep="\n",
    )
    print(*tally.wrong[:5], sep="\n")
    return not tally.wrong and tally.whole > 0


async def throughput(address: str, options: argparse.Namespace) -> bool:
    """Tokens per second of 1 client, and of as many as there are rows, in turns."""
    asked = Asked((5, 6, 7, 8), options.tokens)
    crowd = sorted({1, 2, options.rows // 2 or 1, options.rows})
    speeds: dict[int, list[float]] = {clients: [] for clients in crowd}
    async with httpx2.AsyncClient(base_url=address, timeout=600) as client:
        for turn in range(options.turns + 1):
            for clients in crowd:
                started = time.perf_counter()
                tallies = [Tally() for _ in range(clients)]
                await asyncio.gather(*(answer(client, asked, tally, False, False) for tally in tallies))
                if turn:
                    speeds[clients].append(clients * options.tokens / (time.perf_counter() - started))
    for clients, found in speeds.items():
        said = f"{clients} at once: {median(found):.1f} tokens/s ({median(found) / median(speeds[1]):.2f} of one alone)"
        print(said)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, nargs="+")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--throughput", action="store_true")
    parser.add_argument("--tokens", type=int, default=100, help="of each answer that --throughput asks for")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--ray")
    parser.add_argument("--replicas", default="1")
    parser.add_argument("--kills", type=int, default=0)
    options = parser.parse_args()
    code = "from blockexport.cli.start import run; raise SystemExit(run())"
    command = [sys.executable, "-P", "-c", code, "serve", *map(str, options.bundle), "--port", "0", "--name", "model"]
    command += ["--rows", str(options.rows), "--queue", str(options.clients), "--threads", options.threads]
    command += ["--ray", options.ray, "--replicas", options.replicas] if options.ray else []
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = re.search(r"on (http://\S+)/v1", process.stderr.readline())
        assert found is not None, process.stderr.read()
        work = throughput(found[1], options) if options.throughput else soak(found[1], process, options)
        good = asyncio.run(work)
        process.terminate()
        good = process.wait(120) == 0 and good
    finally:
        process.kill()
    sys.exit(not good)


if __name__ == "__main__":
    main()
