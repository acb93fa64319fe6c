"""Time and memory of a whole export command against onnxruntime-genai's builder and optimum-onnx.

    python benchmarks/export_time.py CHECKPOINT WORKDIR [--optimum-python PYTHON] [--int4] [--rounds 5]

CHECKPOINT is a Hugging Face folder with fp32 weights; with `--int4`, which quantises, in any type. A large one with
random weights is what `blockexport onnx llama-3.2-1b -o CHECKPOINT --bf16 --no-compare` writes, once the tokenizer
files of some model lie beside it: genai's builder wants them.

Every round runs each command once, in turn, into a fresh folder; figures are whole processes. Memory is the most that
the process, or one it waited for, had resident, pages of mapped files included. optimum-onnx wants an older
transformers, so it has a virtual environment of its own, whose interpreter `--optimum-python` names. `--depth` times
our export at 15 and 60 layers instead (random weights).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

BLOCKEXPORT = str(Path(sys.executable).parent / "blockexport")


class Taken(NamedTuple):
    """What a process took."""

    seconds: float
    processor_seconds: float
    megabytes: float


def run(command: list[str], output: Path) -> Taken:
    """What one process takes that writes `output`; what it wrote is removed."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status != 0:
        raise SystemExit(f"exit status {status}: {' '.join(command)}")
    shutil.rmtree(output)
    return Taken(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def commands(checkpoint: Path, output: Path, optimum_python: str | None, int4: bool) -> dict[str, list[str]]:
    """The contenders, each writing `output`."""
    source, target = str(checkpoint), str(output)
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    quantised = ["--quantize", "int4"] if int4 else []
    found = {
        "blockexport": [BLOCKEXPORT, "onnx", source, "-o", target, "--no-compare", *quantised],
        "genai builder": [*builder, "-i", source, "-o", target, "-p", "int4" if int4 else "fp32", "-e", "cpu"],
    }
    if optimum_python is not None:
        cli = [optimum_python, "-m", "optimum.commands.optimum_cli", "export", "onnx"]
        found["optimum-onnx"] = [*cli, "--model", source, "--task", "text-generation-with-past", target]
    return found


def deep_checkpoint(checkpoint: Path, folder: Path, layers: int) -> Path:
    """The checkpoint's shape at another depth, random fp32 weights, saved by transformers."""
    target = folder / f"{layers}-layers"
    if not target.exists():
        import torch
        import transformers

        config = json.loads((checkpoint / "config.json").read_text())
        config["num_hidden_layers"] = layers
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
        model.to(torch.float32).save_pretrained(target, max_shard_size="100GB")
    return target


def main() -> None:
    """Print medians, and the ratio of each contender to ours, round by round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--optimum-python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--depth", action="store_true")
    parser.add_argument("--int4", action="store_true")
    arguments = parser.parse_args()
    if arguments.int4 and (arguments.depth or arguments.optimum_python):
        parser.error("--int4 is measured against genai's builder alone, and at one depth")
    arguments.workdir.mkdir(parents=True, exist_ok=True)
    output = arguments.workdir / "timed-export"
    if arguments.depth:
        contenders = {
            f"{layers} layers": commands(
                deep_checkpoint(arguments.checkpoint, arguments.workdir, layers), output, None, int4=False
            )["blockexport"]
            for layers in (15, 60)
        }
    else:
        contenders = commands(arguments.checkpoint, output, arguments.optimum_python, arguments.int4)
    shutil.rmtree(output, ignore_errors=True)
    figures: dict[str, list[Taken]] = {name: [] for name in contenders}
    for number in range(arguments.rounds + 1):
        for name, command in contenders.items():
            figure = run(command, output)
            if number > 0:  # the first round warms the page cache
                figures[name].append(figure)
    first = next(iter(contenders))
    for name, values in figures.items():
        ratio = statistics.median(v.seconds / ours.seconds for v, ours in zip(values, figures[first], strict=True))
        taken = Taken(*(statistics.median(column) for column in zip(*values, strict=True)))
        print(
            f"{name:15} {taken.seconds:6.2f} s, of a processor {taken.processor_seconds:6.2f} s  "
            f"peak {taken.megabytes:6.0f} MB  {ratio:5.2f} times {first}"
        )


if __name__ == "__main__":
    main()
