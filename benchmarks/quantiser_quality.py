"""What quantising costs a model, by the rule that chooses scales and codes: KL to the unquantised, perplexity, top-1.

    python benchmarks/quantiser_quality.py CHECKPOINT TEXT [--calibrate OTHER_TEXT] [--tokens 2048] [--bits 4]
        [--block-size 32] [--ends]

The matrices of the layers are quantised and widened again, by each rule in turn; head and embedding stay as they are.
Scales are rounded to float16 for all. `onnxruntime` is its own quantiser, which onnxruntime-genai's builder calls for
int4; the rows of llama.cpp are what its package `gguf` makes of the matrices. OTHER_TEXT is what the last row is
calibrated on. With `--ends` the layers stay as they are, and head and embedding are quantised instead, a head in 4 bits
calibrated where a text is given for it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants

from blockexport.export.tokenizer.tokenizer_files import write_tokenizer_files
from blockexport.export.weights.block_quantiser import quantise
from blockexport.export.weights.calibration import Calibration
from blockexport.export.weights.error_feedback import quantise_with_feedback
from blockexport.models.block.cache import empty_cache
from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD
from blockexport.models.checkpoints.untied_checkpoint import UntiedCheckpoint
from blockexport.models.quantisation import EMBEDDINGS, HEADS, SCALE_BYTES
from blockexport.models.quantised_matrix import QuantisationScheme
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer

WINDOW = 512  # tokens that are judged together, each window with an empty cache

Rule = Callable[[str, torch.Tensor], torch.Tensor]
"""What becomes of a matrix [N, K] by its name."""


class Case(NamedTuple):
    """A row of the table: what becomes of which matrices, and the bytes that they take, where that is the question."""

    name: str
    matrices: Mapping[str, Rule]
    size: int | None = None


def rules(scheme: QuantisationScheme, calibration: Calibration | None) -> Iterator[tuple[str, Rule]]:
    """All that apply, by their names."""
    yield "absolute maximum", partial(_by_maximum, scheme=scheme)
    for kind in ("Q4_0", "Q4_1") if scheme == QuantisationScheme(4, 32) else ():
        yield f"llama.cpp {kind}", partial(_by_llama_cpp, kind=kind)
    yield "onnxruntime", partial(_by_onnxruntime, scheme=scheme)
    yield "blockexport", partial(_by_blockexport, scheme=scheme)
    if calibration is not None:
        yield "blockexport, calibrated", partial(_calibrated, scheme=scheme, calibration=calibration)


def _by_maximum(name: str, weight_NK: torch.Tensor, scheme: QuantisationScheme) -> torch.Tensor:
    """The largest absolute value at the largest code."""
    width = weight_NK.shape[1]
    padding = -width % scheme.block_size
    blocks = torch.nn.functional.pad(weight_NK, (0, padding)).unflatten(-1, (-1, scheme.block_size))
    scale = (blocks.abs().amax(-1, keepdim=True) / scheme.highest).half().float()
    codes = torch.where(scale == 0, 0.0, blocks / scale).round().clamp(scheme.lowest, scheme.highest)
    values: torch.Tensor = codes * scale
    return values.flatten(-2)[:, :width]


def _by_llama_cpp(name: str, weight_NK: torch.Tensor, kind: str) -> torch.Tensor:
    """A matrix whose inputs do not fill blocks stays as it is, where llama.cpp takes a larger kind."""
    if weight_NK.shape[1] % 32:
        return weight_NK
    number = GGMLQuantizationType[kind]
    return torch.from_numpy(quants.dequantize(quants.quantize(weight_NK.numpy(), number), number))


def _by_blockexport(name: str, weight_NK: torch.Tensor, scheme: QuantisationScheme) -> torch.Tensor:
    return quantise(name, weight_NK, scheme, torch.float16)[0].dequantised()


def _calibrated(
    name: str, weight_NK: torch.Tensor, scheme: QuantisationScheme, calibration: Calibration
) -> torch.Tensor:
    products_KK = calibration.products(name)
    return quantise_with_feedback(name, weight_NK, products_KK, scheme, torch.float16)[0].dequantised()


def _by_onnxruntime(name: str, weight_NK: torch.Tensor, scheme: QuantisationScheme) -> torch.Tensor:
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


def ends(checkpoint: Checkpoint, block_size: int, calibration: Calibration | None) -> Iterator[Case]:
    """Head and embedding in every way that is offered, and what they take beside a float32 model."""
    fed_back = None if calibration is None else partial(_calibrated, calibration=calibration)
    for head, head_bits in HEADS.items():
        for embedding, embedding_bits in EMBEDDINGS.items():
            found: dict[str, Rule] = {}
            size = 0
            for name, bits in ((OUTPUT_HEAD, head_bits), (EMBEDDING, embedding_bits)):
                entry = checkpoint.entries[name]
                if bits is None:
                    shared = name == OUTPUT_HEAD and embedding_bits is None and checkpoint.origin(name) != name
                    size += 0 if shared else 4 * entry.size
                    continue
                scheme = QuantisationScheme(bits, block_size)
                size += scheme.code_bytes(entry.size) + SCALE_BYTES * entry.shape[0] * scheme.blocks(entry.shape[1])
                rule = fed_back if fed_back is not None and bits == 4 else _by_blockexport
                found[name] = partial(rule, scheme=scheme)
            yield Case(f"head {head}, embedding {embedding}", found, size)


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


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("text", type=Path)
    parser.add_argument("--calibrate", type=Path)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--ends", action="store_true")
    given = parser.parse_args()
    if given.calibrate is not None and given.calibrate.read_bytes() == given.text.read_bytes():
        parser.error("a calibration is measured on another text than its own")
    return given


def main() -> None:
    """Print one line for each rule."""
    given = arguments()
    scheme = QuantisationScheme(given.bits, given.block_size)
    source = open_checkpoint(given.checkpoint)
    ids_S = tokens_of(source, given.text, given.tokens)
    calibration = None
    if given.calibrate is not None:
        calibration = Calibration(source, tokens_of(source, given.calibrate, 8192))
    checkpoint = UntiedCheckpoint(source) if source.config.tie_word_embeddings else source
    model = load_model(checkpoint, torch.float32, WINDOW)
    weights = dict(model.named_parameters())
    if given.ends:
        cases = list(ends(checkpoint, given.block_size, calibration))
    else:
        layers = [name for name in weights if name.endswith("_proj.weight")]
        cases = [Case(rule, dict.fromkeys(layers, function)) for rule, function in rules(scheme, calibration)]
    wanted_SV = logits_of(model, ids_S)
    nexts = torch.cat([window[1:] for window in ids_S.split(WINDOW)])
    judged = torch.cat([torch.arange(i, min(i + WINDOW, len(ids_S)) - 1) for i in range(0, len(ids_S), WINDOW)])

    def perplexity(logits_SV: torch.Tensor) -> float:
        return float(logits_SV[judged, nexts].mean().neg().exp())

    said = f"{len(ids_S)} tokens; int{scheme.bits} in blocks of {scheme.block_size}"
    print(f"{said}; unquantised perplexity {perplexity(wanted_SV):.4f}")
    size = f"{'MB':>9}" * given.ends
    print(f"{'':32}{size}{'rms error':>10}{'mean KL':>10}{'p99 KL':>10}{'perplexity':>12}{'top-1':>8}{'seconds':>9}")
    for case in cases:
        began = time.process_time()
        lost, total, original = 0.0, 0.0, dict[str, torch.Tensor]()
        with torch.inference_mode():
            for name, rule in case.matrices.items():
                original[name] = weights[name].clone()
                found = rule(name, original[name])
                lost += float((found - original[name]).double().square().sum())
                total += float(original[name].double().square().sum())
                weights[name].copy_(found)
            seconds = time.process_time() - began
            found_SV = logits_of(model, ids_S)
            for name, value in original.items():
                weights[name].copy_(value)
        kl_S = (wanted_SV.exp() * (wanted_SV - found_SV)).sum(-1)
        same = (wanted_SV.argmax(-1) == found_SV.argmax(-1)).float().mean()
        size = "" if case.size is None else f"{case.size / 1e6:>9.2f}"
        print(
            f"{case.name:32}{size}{(lost / total if total else 0) ** 0.5:>10.2%}{float(kl_S.mean()):>10.5f}"
            f"{float(kl_S.quantile(0.99)):>10.4f}{perplexity(found_SV):>12.4f}{float(same):>8.2%}{seconds:>9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
