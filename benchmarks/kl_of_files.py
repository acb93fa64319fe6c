"""What quantising costs files of several tools, each run as its tool runs it: mean KL to the unquantised checkpoint.

    python benchmarks/kl_of_files.py CHECKPOINT TEXT BUNDLE [BUNDLE | GENAI_FOLDER | GGUF ...]

The first file is a bundle of `blockexport onnx`, whose tokenizer is used. A GGUF's weights are run in float32, without
the rounding of activations that llama.cpp adds. TEXT must not be what a file was calibrated on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.runtime.open import open_decoder
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer

WINDOW = 512  # tokens that are judged together, each window with an empty cache

Run = Callable[[torch.Tensor], torch.Tensor]
"""Logits [S, V] of a window's tokens [S]."""


def eager(checkpoint: Checkpoint) -> Run:
    """In float32."""
    model = load_model(checkpoint, torch.float32, WINDOW)

    def run(ids_S: torch.Tensor) -> torch.Tensor:
        past = empty_cache(model.config, 1, WINDOW, torch.float32)
        logits: torch.Tensor = model(ids_S[None], torch.arange(len(ids_S))[None], past)[0][0]
        return logits

    return run


def bundle(folder: Path) -> Run:
    """In ONNX Runtime, with the rounding that makes it fast."""
    decoder = open_decoder(folder)

    def run(ids_S: torch.Tensor) -> torch.Tensor:
        decoder.reset()
        return decoder.prefill(ids_S[None])[0]

    return run


def genai(folder: Path) -> Run:
    """In onnxruntime-genai."""
    import onnxruntime_genai

    model = onnxruntime_genai.Model(str(folder))

    def run(ids_S: torch.Tensor) -> torch.Tensor:
        generator = onnxruntime_genai.Generator(model, onnxruntime_genai.GeneratorParams(model))
        generator.append_tokens(ids_S.numpy().astype(np.int32))
        return torch.from_numpy(np.array(generator.get_output("logits")))[0]

    return run


@torch.inference_mode()
def main() -> None:
    """Print one line for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("checkpoint", "text", "first"):
        parser.add_argument(name, type=Path)
    parser.add_argument("others", type=Path, nargs="*")
    given = parser.parse_args()
    ids_S = torch.tensor(BundleTokenizer(given.first).encode(given.text.read_text(encoding="utf-8")))

    def told(run: Run) -> torch.Tensor:
        return torch.cat([run(window).float().log_softmax(-1) for window in ids_S.split(WINDOW)])

    wanted_SV = told(eager(open_checkpoint(str(given.checkpoint))))
    print(f"{len(ids_S)} tokens\n{'':32}{'mean KL':>10}{'p99 KL':>10}{'top-1':>9}")
    for path in (given.first, *given.others):
        if path.suffix == ".gguf":
            found_SV = told(eager(open_checkpoint(str(path))))
        else:
            found_SV = told((bundle if (path / "manifest.json").is_file() else genai)(path))
        kl_S = (wanted_SV.exp() * (wanted_SV - found_SV)).sum(-1)
        same = (wanted_SV.argmax(-1) == found_SV.argmax(-1)).float().mean()
        print(f"{path.name:32}{float(kl_S.mean()):>10.4f}{float(kl_S.quantile(0.99)):>10.3f}{float(same):>9.2%}")


if __name__ == "__main__":
    main()
