"""What quantising costs a model, by the rule that chooses the scales: KL to the unquantised model, perplexity, top-1.

    python benchmarks/quantiser_quality.py CHECKPOINT TEXT [--tokens 2048] [--bits 4] [--block-size 32]

The matrices of the layers are quantised and widened again, by each rule in turn; head and embedding stay as they are.
Scales are rounded to float16 for all. `onnxruntime` is its own quantiser, behind onnxruntime-genai's int4.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from blockexport.export.tokenizer.tokenizer_files import write_tokenizer_files
from blockexport.export.weights.block_quantiser import quantise
from blockexport.models.block.cache import empty_cache
from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.quantised_matrix import QuantisationScheme
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer

WINDOW = 512  # tokens that are judged together, each window with an empty cache

Rule = Callable[[torch.Tensor, QuantisationScheme], torch.Tensor]


def by_maximum(weight_NK: torch.Tensor, scheme: QuantisationScheme) -> torch.Tensor:
    """The largest absolute value at the largest code."""
    return _rounded(weight_NK, scheme, lambda blocks: blocks.abs().amax(-1, keepdim=True) / scheme.highest)


def by_signed_maximum(weight_NK: torch.Tensor, scheme: QuantisationScheme) -> torch.Tensor:
    """llama.cpp's Q4_0: the value of largest size at the smallest code."""
    return _rounded(
        weight_NK,
        scheme,
        lambda blocks: blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)) / scheme.lowest,
    )


def by_least_squares(weight_NK: torch.Tensor, scheme: QuantisationScheme) -> torch.Tensor:
    """blockexport's."""
    return quantise("a matrix", weight_NK, scheme, torch.float16, torch.get_num_threads())[0].dequantised()


def by_onnxruntime(weight_NK: torch.Tensor, scheme: QuantisationScheme) -> torch.Tensor:
    """MatMulNBitsQuantizer's default, symmetric."""
    from onnxruntime.capi._pybind_state import quantize_matmul_4bits, quantize_matmul_8bits

    outputs, width = weight_NK.shape
    blocks, size, bits = scheme.blocks(width), scheme.block_size, scheme.bits
    packed = np.zeros((outputs, blocks, size * bits // 8), np.uint8)
    scales, zeros = np.zeros(outputs * blocks, np.float32), np.zeros(outputs * ((blocks * bits + 7) // 8), np.uint8)
    run = quantize_matmul_4bits if bits == 4 else quantize_matmul_8bits
    run(packed, np.ascontiguousarray(weight_NK.T.numpy()), scales, zeros, size, outputs, width, True)
    codes = packed if bits == 8 else np.stack((packed & 15, packed >> 4), -1).reshape(outputs, blocks, size)
    rounded = scales.astype(np.float16).astype(np.float32).reshape(outputs, blocks, 1)
    values = (codes.astype(np.float32) - (1 << (bits - 1))) * rounded
    return torch.from_numpy(values.reshape(outputs, -1)[:, :width].copy())


RULES: dict[str, Rule] = {
    "absolute maximum": by_maximum,
    "signed maximum (Q4_0)": by_signed_maximum,
    "onnxruntime": by_onnxruntime,
    "least squares": by_least_squares,
}


def _rounded(
    weight_NK: torch.Tensor, scheme: QuantisationScheme, scale_of: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    width = weight_NK.shape[1]
    padding = -width % scheme.block_size
    blocks = torch.nn.functional.pad(weight_NK, (0, padding)).unflatten(-1, (-1, scheme.block_size))
    scale = scale_of(blocks).half().float()
    codes = torch.where(scale == 0, 0.0, blocks / scale).round().clamp(scheme.lowest, scheme.highest)
    return (codes * scale).flatten(-2)[:, :width]


@torch.inference_mode()
def logits_of(model: DecoderModel, ids_S: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of every position, window by window."""
    parts = []
    for window in ids_S.split(WINDOW):
        past = empty_cache(model.config, 1, WINDOW, torch.float32)
        parts.append(model(window[None], torch.arange(len(window))[None], past)[0][0].log_softmax(-1))
    return torch.cat(parts)


def tokens_of(checkpoint: Checkpoint, text: Path, count: int) -> torch.Tensor:
    """The first `count` tokens of a file."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer_files(checkpoint, Path(folder))
        ids = BundleTokenizer(Path(folder)).encode(text.read_text(encoding="utf-8")[: 8 * count])
    return torch.tensor(ids[:count])


def main() -> None:
    """Print one line for each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--block-size", type=int, default=32)
    given = parser.parse_args()
    scheme = QuantisationScheme(given.bits, given.block_size)
    checkpoint = open_checkpoint(given.checkpoint)
    ids_S = tokens_of(checkpoint, given.text, given.tokens)
    model = load_model(checkpoint, torch.float32, WINDOW)
    weights = {name: value for name, value in model.named_parameters() if name.endswith("_proj.weight")}
    original = {name: value.detach().clone() for name, value in weights.items()}
    wanted_SV = logits_of(model, ids_S)
    nexts = torch.cat([window[1:] for window in ids_S.split(WINDOW)])
    judged = torch.cat([torch.arange(i, min(i + WINDOW, len(ids_S)) - 1) for i in range(0, len(ids_S), WINDOW)])

    def perplexity(logits_SV: torch.Tensor) -> float:
        return float(logits_SV[judged, nexts].mean().neg().exp())

    said = f"{len(ids_S)} tokens; int{scheme.bits} in blocks of {scheme.block_size}"
    print(f"{said}; unquantised perplexity {perplexity(wanted_SV):.4f}")
    print(f"{'rule':24}{'rms error':>10}{'mean KL':>10}{'p99 KL':>10}{'perplexity':>12}{'top-1':>8}{'seconds':>9}")
    for rule, function in RULES.items():
        began = time.process_time()
        lost = total = 0.0
        with torch.inference_mode():
            for name, value in weights.items():
                found = function(original[name], scheme)
                lost += float((found - original[name]).double().square().sum())
                total += float(original[name].double().square().sum())
                value.copy_(found)
        seconds = time.process_time() - began
        found_SV = logits_of(model, ids_S)
        kl_S = (wanted_SV.exp() * (wanted_SV - found_SV)).sum(-1)
        same = (wanted_SV.argmax(-1) == found_SV.argmax(-1)).float().mean()
        print(
            f"{rule:24}{(lost / total) ** 0.5:>10.2%}{float(kl_S.mean()):>10.4f}{float(kl_S.quantile(0.99)):>10.4f}"
            f"{perplexity(found_SV):>12.4f}{float(same):>8.2%}{seconds:>9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
