"""Decode speed of one bundle in C++, in Python, and in onnxruntime-genai, and the memory of the C++ program.

    python benchmarks/cpp_decode_speed.py BUNDLE DECODER_TOOL

DECODER_TOOL is runtime/cpp's test program of that name (built with -DBLOCKEXPORT_BUILD_TESTS=ON). All three are greedy,
start from the same prompt, run the same file on the same library, and take turns, stretch by stretch, so that a noisy
machine is noisy for all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as genai
import torch

from blockexport.runtime.open import open_decoder

PROMPT, STRETCH = 64, 8


class Cpp:
    """The C++ decoder in a process of its own."""

    def __init__(self, tool: Path, bundle: Path, prompt: list[int], **options: Any) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
            json.dump(
                {"op": "bench", "bundle": str(bundle), "prompt": prompt, "count": STRETCH, "options": options}, file
            )
        self._process = subprocess.Popen(
            [str(tool), file.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        Path(file.name).unlink()

    def stretch(self) -> float:
        """Milliseconds per token."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        return float(self._process.stdout.readline())

    def close(self) -> dict[str, float]:
        """End the process; what it says of itself."""
        said, _ = self._process.communicate()
        result: dict[str, float] = json.loads(said)
        return result


def timed(token: Callable[[], None]) -> float:
    """Milliseconds per call over a stretch."""
    start = time.perf_counter()
    for _ in range(STRETCH):
        token()
    return (time.perf_counter() - start) / STRETCH * 1e3


class Python:
    """Our Python decoder."""

    def __init__(self, bundle: Path, prompt: list[int], threads: int) -> None:
        self._decoder = open_decoder(bundle, threads=threads)
        self._next = int(self._decoder.prefill(torch.tensor([prompt]))[0, -1].argmax())

    def _token(self) -> None:
        self._next = int(self._decoder.step(torch.tensor([[self._next]]))[0, -1].argmax())

    def stretch(self) -> float:
        """Milliseconds per token."""
        return timed(self._token)


class Genai:
    """onnxruntime-genai on the same folder."""

    def __init__(self, bundle: Path, prompt: list[int], slots: int) -> None:
        self._model = genai.Model(str(bundle))
        params = genai.GeneratorParams(self._model)
        params.set_search_options(max_length=slots, do_sample=False)
        self._generator: Any = genai.Generator(self._model, params)
        self._generator.append_tokens(np.array(prompt, dtype=np.int32))

    def stretch(self) -> float:
        """Milliseconds per token."""
        return timed(self._generator.generate_next_token)


def main() -> None:
    """Print milliseconds per token of each (medians), the median ratio of paired stretches, and the memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("tool", type=Path)
    parser.add_argument("--stretches", type=int, default=20)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    manifest = json.loads((arguments.bundle / "manifest.json").read_text())
    prompt = [(7 * i) % 4000 + 5 for i in range(PROMPT)]
    cpp = Cpp(arguments.tool, arguments.bundle, prompt, threads=arguments.threads)
    contenders: dict[str, Cpp | Python | Genai] = {
        "C++": cpp,
        "Python": Python(arguments.bundle, prompt, arguments.threads),
        "onnxruntime-genai": Genai(arguments.bundle, prompt, manifest["max_sequence_length"]),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(arguments.stretches):
        for name, contender in contenders.items():
            times[name].append(contender.stretch())
    for name, values in times.items():
        ratios = [value / own for value, own in zip(values, times["C++"], strict=True)]
        print(
            f"{name:20} {statistics.median(values):7.2f} ms/token (best {min(values):.2f}), "
            f"{statistics.median(ratios):.3f} times C++ (median of pairs)"
        )
    lean = Cpp(arguments.tool, arguments.bundle, prompt, threads=arguments.threads, low_memory=True)
    _tell_memory(manifest, {"default": cpp.close(), "low memory": _after_a_stretch(lean)})


def _after_a_stretch(cpp: Cpp) -> dict[str, float]:
    cpp.stretch()
    return cpp.close()


def _tell_memory(manifest: dict[str, Any], runs: dict[str, dict[str, float]]) -> None:
    config = manifest["config"]
    itemsize = 4 if manifest["precision"] == "fp32" else 2
    rows = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * manifest["max_sequence_length"]
    cache = rows * config["head_dim"] * itemsize
    files = manifest["files"]
    weights = sum(files[name]["bytes"] for name in files["model.onnx"]["made_from"])
    print(f"weights {weights / 1e6:.0f} MB, cache {cache / 1e6:.0f} MB")
    for name, run in runs.items():
        share = run["resident_bytes"] / (weights + cache)
        print(
            f"C++ {name:10}: {run['resident_bytes'] / 1e6:.0f} MB resident ({share:.2f} of weights and cache), "
            f"{run['anonymous_bytes'] / 1e6:.0f} MB its own, opened in {run['open_seconds']:.2f} s"
        )


if __name__ == "__main__":
    main()
