"""Which matrices of a bundle are quantised, and how: the one record of it, in the manifest and everywhere else.

Quantised are the projections of the layers, the output head and the embedding. Norms and biases never are: they are
few, and everything passes through them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from blockexport.models.quantised_matrix import BLOCK_SIZES, QuantisationScheme
from blockexport.models.wording import did_you_mean

if TYPE_CHECKING:
    import torch

    from blockexport.models.config.model_config import ModelConfig

LAYERS = {"int4": 4, "int8": 8}
HEADS = {"int4": 4, "int8": 8, "float": None}
SCALE_BYTES = 2
EMBEDDINGS = {"int8": 8, "float": None}  # ONNX's Gather takes no type of four bits

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Quantisation:
    """How the matrices of a bundle are quantised.

    A tied embedding that is quantised stands in the file twice: the head's product wants its codes as [K, N], the
    lookup as rows, and ONNX Runtime would turn the one into the other in memory when the file is loaded.

    Attributes:
        layers: of the projections in the layers.
        head: of the output head; None: it stays in the bundle's precision.
        embedding: of the embedding; None likewise.
        calibration: hex sha256 of the token ids (int64, little-endian) for which the matrices in 4 bits were made
            best; None where every code is the nearest to its weight.
    """

    layers: QuantisationScheme
    head: QuantisationScheme | None
    embedding: QuantisationScheme | None
    calibration: str | None = None

    def scheme_of(self, name: str) -> QuantisationScheme | None:
        """That of a tensor by its Hugging Face name; None where it is not quantised."""
        if name == _EMBEDDING:
            return self.embedding
        if name == _HEAD:
            return self.head
        return self.layers if name.endswith("_proj.weight") else None

    def is_calibrated(self, name: str) -> bool:
        """Whether codes of a tensor may be a step off the nearest, for the sake of what it is multiplied by."""
        scheme = self.scheme_of(name)
        return self.calibration is not None and scheme is not None and scheme.bits == 4

    def options(self) -> list[str]:
        """The words that ask for it on the command line of an engine, whose embedding is not quantised."""
        head = "float" if self.head is None else f"int{self.head.bits}"
        layers = self.layers
        return ["--quantize", f"int{layers.bits}", "--block-size", str(layers.block_size), "--head", head]

    def stored_config(self, config: ModelConfig) -> ModelConfig:
        """The config of the model as the bundle has it: a head that is quantised, or whose embedding is, is untied."""
        untied = (self.head, self.embedding) != (None, None)
        return replace(config, tie_word_embeddings=config.tie_word_embeddings and not untied)


def quantisation_of(layers: str, block_size: int = 32, head: str = "int8", embedding: str = "int8") -> Quantisation:
    """The record of what was asked for by name.

    Args:
        layers: one of `LAYERS`.
        block_size: of all of them.
        head: one of `HEADS`.
        embedding: one of `EMBEDDINGS`.

    Raises:
        UsageError: a name that is none of these, or a block size.
    """
    for what, asked, known in (
        ("quantize", layers, LAYERS),
        ("head", head, HEADS),
        ("embedding", embedding, EMBEDDINGS),
    ):
        if asked not in known:
            raise UsageError(f"--{what} {asked!r}: there are {', '.join(known)}{did_you_mean(str(asked), known)}")
    if block_size not in BLOCK_SIZES or isinstance(block_size, bool):
        raise UsageError(f"--block-size {block_size!r}: there are {', '.join(map(str, BLOCK_SIZES))}")
    bits = (LAYERS[layers], HEADS[head], EMBEDDINGS[embedding])
    schemes = [None if n is None else QuantisationScheme(n, block_size) for n in bits]
    assert schemes[0] is not None
    return Quantisation(schemes[0], schemes[1], schemes[2])


def scale_dtype(precision: Precision) -> torch.dtype:
    """What scales are stored in: 16 bits in every precision, so that a code times a scale is exact in float32.

    A float32 graph widens them; ONNX Runtime does so once, when it loads the file.
    """
    return (Precision.BF16 if precision is Precision.BF16 else Precision.FP16).torch_dtype


def asked_quantisation(quantize: str | None, headless: bool = False, **details: Any) -> Quantisation | None:
    """The record of what `export_bundle` was asked for: `quantize`, and the details of it that were given. On what it
    is calibrated is not in there yet.

    Raises:
        UsageError: a name or a number that is not offered, details without `quantize`, or of ends that there are none.
    """
    given = {name: value for name, value in details.items() if value is not None}
    missing = next((name for name in ("head", "embedding") if headless and name in given), None)
    if missing is not None:
        raise UsageError(f"--headless has neither embedding nor output head: leave out --{missing}")
    if quantize is not None:
        calibrated = given.pop("calibrate", None) is not None
        asked = quantisation_of(quantize, **given)
        if calibrated and all(scheme is None or scheme.bits != 4 for scheme in (asked.layers, asked.head)):
            raise UsageError("--calibrate chooses codes of 4 bits, and here are none: leave it out, or --quantize int4")
        return asked
    if given:
        option = next(iter(given)).replace("_", "-")
        raise UsageError(f"--{option} says how a bundle is quantised: add --quantize int4 or int8, or leave it out")
    return None
