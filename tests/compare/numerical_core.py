"""What depends on a processor's rounding, in one process: sound files of a few models are judged and looked into.

Which kernels PyTorch, MKL, oneDNN and ONNX Runtime take is settled when they are loaded, by the environment. So this
runs in a process of its own (test_processors.py), and prints a line of JSON for each judgement.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from blockexport.compare.judge import JudgeOptions
from blockexport.compare.judged_bundle import bundle_options
from blockexport.compare.report.report import Report
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.precision import Precision
from blockexport.runtime.open import open_decoder
from tests.any_model import draw_sharp, weights_of
from tests.compare.judged import judge
from tests.compare.memory_checkpoint import MemoryCheckpoint
from tests.exported import EVERYTHING, export, gainful

SEEDS = (2, 36, 17, 29)  # plain and sharp, fp32, fp16 and bf16
SLOTS = 29


def random_models() -> Iterator[tuple[str, Checkpoint, Precision]]:
    """Name, source and precision of each model."""
    yield "everything", gainful(EVERYTHING), Precision.FP32
    for seed in SEEDS:
        drawn = replace(draw_sharp(seed), headless=False, last_logits_only=False)
        yield str(drawn), MemoryCheckpoint(drawn.config, weights_of(drawn, seed)), drawn.precision


def trained_model(folder: str) -> Iterator[tuple[str, Checkpoint, Precision]]:
    """The same of one checkpoint, in two precisions."""
    for precision in (Precision.FP32, Precision.FP16):
        yield Path(folder).name, open_checkpoint(folder), precision


def line(name: str, backend: str, report: Report) -> dict[str, object]:
    """A judgement in a few figures."""
    found = [r.stretch for r in report.checks if r.stretch]
    search = None if report.explanation is None else report.explanation.search
    return {
        "model": name,
        "backend": backend,
        "verdict": str(report.verdict),
        "failed": [f"{r.name}: {r.message}" for r in report.checks if r.verdict == "fail"],
        "rms_share": max(s.rms_share for s in found),
        "max_share": max(s.max_share for s in found),
        "replayed": None if search is None else [search.reproduced, search.ratio],
        "located": None if search is None or search.location is None else search.location.sentence,
    }


def main(trained: str | None = None) -> None:
    """Judge every model in ONNX Runtime or the replay, and print what came of it."""
    models = random_models() if trained is None else trained_model(trained)
    with tempfile.TemporaryDirectory() as folder:
        for i, (name, checkpoint, precision) in enumerate(models):
            bundle = Path(folder) / str(i)
            export(checkpoint, bundle, precision, SLOTS)
            backend = "replay" if precision is Precision.BF16 else "onnxruntime"
            decoder = open_decoder(bundle, backend)
            options = bundle_options(bundle, backend, JudgeOptions(locate=precision is Precision.FP32))
            said = line(f"{name} {precision}", backend, judge(decoder, checkpoint, options))
            sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
