"""Two installed versions of blockexport, side by side: start-up, export, compare, explain and decode.

    python benchmarks/two_versions.py BEFORE_VENV AFTER_VENV CHECKPOINT [--rounds 5]

Each VENV is a virtual environment with one of the versions. The two take turns at every measurement, so that a noisy
machine is noisy for both; medians of wall seconds, processor seconds, and their ratios are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

DECODE = """
import sys, time, torch
from blockexport.runtime.open import open_decoder
from pathlib import Path
decoder = open_decoder(Path(sys.argv[1]))
decoder.prefill(torch.arange(1, 65)[None])
times = []
for _ in range(192):
    start = time.perf_counter()
    decoder.step(torch.tensor([[5]]))
    times.append(time.perf_counter() - start)
print(sorted(times)[len(times) // 2])
"""

Measurement = Callable[[Path, Path], tuple[float, float]]


def timed(command: Sequence[str | Path], ends_with: int = 0) -> tuple[float, float]:
    """Wall and processor seconds of a command that has to end with this exit code."""
    wall, before = time.perf_counter(), os.times()
    words = [str(part) for part in command]
    code = subprocess.run(words, check=False, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir()).returncode
    after = os.times()
    if code != ends_with:
        raise SystemExit(f"exit code {code} and not {ends_with}: {' '.join(words)}")
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - wall, spent


def decode_step(venv: Path, bundle: Path) -> tuple[float, float]:
    """Seconds of the median decode step, twice: it is both the wall time and what there is to compare."""
    command = [str(venv / "bin/python"), "-c", DECODE, str(bundle)]
    step = float(subprocess.run(command, check=True, capture_output=True, text=True, cwd=tempfile.gettempdir()).stdout)
    return step, step


def broken(bundle: Path) -> Path:
    """A copy of the bundle in which one matrix of a layer in the middle is all zeros; made once."""
    copy = bundle.with_name("broken")
    if not copy.exists():
        shutil.copytree(bundle, copy)
        with (copy / "model.safetensors").open("r+b") as file:
            length = int.from_bytes(file.read(8), "little")
            tensors = json.loads(file.read(length))
            layers = {int(name.split(".")[2]) for name in tensors if name.startswith("model.layers.")}
            begin, end = tensors[f"model.layers.{len(layers) // 2}.self_attn.o_proj.weight"]["data_offsets"]
            file.seek(8 + length + begin)
            file.write(bytes(end - begin))
    return copy


def measurements(checkpoint: Path) -> dict[str, tuple[int, Measurement]]:
    """What is measured: how many times each round, and how, given an environment and a folder of its own."""
    export: list[str | Path] = ["onnx", checkpoint, "--max-sequence-length", "512", "--no-compare", "--force"]

    def compare(venv: Path) -> list[str | Path]:
        return [venv / "bin/blockexport", "compare", "--quiet"]

    return {
        "import blockexport": (5, lambda venv, _: timed([venv / "bin/python", "-c", "import blockexport"])),
        "blockexport --help": (5, lambda venv, _: timed([venv / "bin/blockexport", "--help"])),
        "export": (1, lambda venv, work: timed([venv / "bin/blockexport", *export, "-o", work / "bundle"])),
        "compare": (1, lambda venv, work: timed([*compare(venv), work / "bundle"])),
        "compare and explain": (1, lambda venv, work: timed([*compare(venv), broken(work / "bundle")], ends_with=1)),
        "decode step": (1, lambda venv, work: decode_step(venv, work / "bundle")),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{'':20}{'before s':>10}{'after s':>10}{'ratio':>8}   processor: before, after, ratio")
    with tempfile.TemporaryDirectory() as work:
        folders = {venv: Path(work) / name for name, venv in (("b", arguments.before), ("a", arguments.after))}
        for folder in folders.values():
            folder.mkdir()
        for name, (times, measure) in measurements(arguments.checkpoint.resolve()).items():
            seen: dict[Path, list[tuple[float, float]]] = {venv: [] for venv in folders}
            for turn in range(arguments.rounds * times):
                for venv in list(folders)[:: 1 if turn % 2 else -1]:
                    seen[venv].append(measure(venv.absolute(), folders[venv]))
            before, after = ([statistics.median(part) for part in zip(*seen[v], strict=True)] for v in folders)
            ratios = [new / old for old, new in zip(before, after, strict=True)]
            print(f"{name:20}{before[0]:10.4f}{after[0]:10.4f}{ratios[0]:8.2f}   ", end="")
            print(f"{before[1]:.4f}, {after[1]:.4f}, {ratios[1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
