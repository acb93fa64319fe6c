"""Tokens per second of `blockexport serve` and of llama.cpp's server, of one client and of as many as there are rows.

    python benchmarks/serve_against.py BUNDLE FILE.gguf [--rows 8] [--threads 2] [--tokens 64] [--turns 5]

Both servers run all the while, and are asked in turns, so that a machine that grows slower does so for both. Each
client asks for the greedy continuation of the same token ids; what is counted is what the answers say of their tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx2

PROMPT = (504, 3575, 282, 4649, 314, 7042, 30, 657, 314, 260, 2240, 282, 260, 905, 284, 260)
SLOTS = 512
LLAMA = """
import sys, time, xllamacpp
path, rows, slots, threads = sys.argv[1], *map(int, sys.argv[2:])
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.n_gpu_layers = path, rows * slots, rows, 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.cache_ram_mib, params.verbosity = 0, -1
server = xllamacpp.Server(params)
print("listening on", server.listening_address, flush=True)
time.sleep(1e6)
"""


def address_of(process: subprocess.Popen[str]) -> str:
    """What a server that was started says that it listens on."""
    assert process.stdout is not None
    for line in process.stdout:
        if (found := re.search(r" on (http://[^\s/]+)", line)) is not None:
            return found[1]
    raise SystemExit("a server ended before it named its address")


async def turn(address: str, clients: int, tokens: int, more: dict[str, Any]) -> float:
    """Tokens per second of so many clients at once."""
    body = {"model": "model", "prompt": list(PROMPT), "max_tokens": tokens, "temperature": 0, **more}
    async with httpx2.AsyncClient(base_url=address, timeout=600) as client:
        began = time.perf_counter()
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(clients)))
        seconds = time.perf_counter() - began
    counted = [answer.raise_for_status().json()["usage"]["completion_tokens"] for answer in answers]
    if set(counted) != {tokens}:
        print(f"{address}: answers of {sorted(set(counted))} tokens", file=sys.stderr)
    return float(sum(counted) / seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("gguf", type=Path)
    for name, default in (("rows", 8), ("threads", 2), ("tokens", 64), ("turns", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    code = "from blockexport.cli.start import run; raise SystemExit(run())"
    ours = [sys.executable, "-P", "-c", code, "serve", str(options.bundle), "--port", "0", "--name", "model"]
    ours += ["--rows", str(options.rows), "--threads", str(options.threads), "-M", str(SLOTS)]
    numbers = [str(number) for number in (options.rows, SLOTS, options.threads)]
    theirs = [sys.executable, "-P", "-c", LLAMA, str(options.gguf), *numbers]
    commands = {"blockexport": ours, "llama.cpp": theirs}
    more: dict[str, dict[str, Any]] = {"llama.cpp": {"ignore_eos": True, "cache_prompt": False}}
    speeds: dict[tuple[str, int], list[float]] = {}
    servers: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, command in commands.items():
            pipe = subprocess.PIPE
            servers[name] = subprocess.Popen(command, text=True, stdout=pipe, stderr=subprocess.STDOUT)
        addresses = {name: address_of(process) for name, process in servers.items()}
        for number in range(options.turns + 1):
            for clients in (1, options.rows):
                for name, address in addresses.items():
                    found = asyncio.run(turn(address, clients, options.tokens, more.get(name, {})))
                    if number:  # the first turn warms up
                        speeds.setdefault((name, clients), []).append(found)
    finally:
        for process in servers.values():
            process.kill()
    for (name, clients), rates in sorted(speeds.items()):
        ratio = median(rates) / median(speeds[name, 1])
        print(f"{name}, {clients} at once: {median(rates):.1f} tokens/s ({min(rates):.1f} to {max(rates):.1f}), "
              f"{ratio:.2f} of one alone")  # fmt: skip


if __name__ == "__main__":
    main()
