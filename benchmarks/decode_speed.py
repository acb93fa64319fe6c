"""Decode speed of a bundle in our ONNX Runtime decoder against onnxruntime-genai on its own builder's export.

    python benchmarks/decode_speed.py CHECKPOINT WORKDIR

CHECKPOINT is a Hugging Face folder. Both exports are made in WORKDIR unless they are there: fp32, 512 cache slots for
ours, the builder's defaults for theirs. Needs onnxruntime-genai and transformers. The two take turns, token stretch by
token stretch, in one process, so that a noisy machine is noisy for both.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as genai
import torch

from blockexport.runtime.decoder import Decoder
from blockexport.runtime.open import open_decoder

SLOTS, PROMPT, STRETCH = 512, 64, 16


def exports(checkpoint: Path, folder: Path) -> tuple[Path, Path]:
    """Our bundle and the builder's folder."""
    ours, theirs = folder / "bundle", folder / "genai-builder"
    if not ours.exists():
        command = ["blockexport", "onnx", checkpoint, "-o", ours, "-M", SLOTS, "--no-compare"]
        subprocess.run([str(part) for part in command], check=True)
    if not theirs.exists():
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
        options = ["-i", str(checkpoint), "-o", str(theirs), "-p", "fp32", "-e", "cpu"]
        subprocess.run([*builder, *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return ours, theirs


class Ours:
    """Greedy decoding with our decoder."""

    def __init__(self, bundle: Path, prompt: list[int]) -> None:
        self.decoder: Decoder = open_decoder(bundle)
        self.next = int(self.decoder.prefill(torch.tensor([prompt]))[0, -1].argmax())

    def token(self) -> None:
        self.next = int(self.decoder.step(torch.tensor([[self.next]]))[0, -1].argmax())


class Theirs:
    """Greedy decoding with onnxruntime-genai."""

    def __init__(self, folder: Path, prompt: list[int]) -> None:
        self.model = genai.Model(str(folder))
        params = genai.GeneratorParams(self.model)
        params.set_search_options(max_length=SLOTS, do_sample=False)
        self.generator: Any = genai.Generator(self.model, params)
        self.generator.append_tokens(np.array(prompt, dtype=np.int32))
        self.generator.generate_next_token()

    def token(self) -> None:
        self.generator.generate_next_token()


def main() -> None:
    """Print milliseconds per token of each, medians over stretches, and the ratio of paired stretches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--stretches", type=int, default=20)
    parser.add_argument("--low-memory", action="store_true", help="our decoder with mapped weights")
    arguments = parser.parse_args()
    arguments.workdir.mkdir(parents=True, exist_ok=True)
    bundle, built = exports(arguments.checkpoint, arguments.workdir)
    prompt = [(7 * i) % 4000 + 5 for i in range(PROMPT)]
    contenders: dict[str, Ours | Theirs] = {
        "blockexport": Ours(bundle, prompt),
        "onnxruntime-genai": Theirs(built, prompt),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(arguments.stretches):
        for name, contender in contenders.items():
            start = time.perf_counter()
            for _ in range(STRETCH):
                contender.token()
            times[name].append((time.perf_counter() - start) / STRETCH * 1e3)
    for name, values in times.items():
        print(f"{name:20} {statistics.median(values):7.2f} ms/token (best {min(values):.2f})")
    ratios = [theirs / ours for ours, theirs in zip(times["blockexport"], times["onnxruntime-genai"], strict=True)]
    print(f"onnxruntime-genai takes {statistics.median(ratios):.2f} times as long (median of {len(ratios)} pairs)")


if __name__ == "__main__":
    main()
