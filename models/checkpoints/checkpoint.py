"""A checkpoint as the rest of the project sees it: a config, and tensors under Hugging Face names, read one at a time.

The readers (safetensors, GGUF, random weights) live beside this file; `open_checkpoint` in `sources.py` picks one.
Whatever the file's own conventions, `read` gives Hugging Face layout: [out, in] matrices, half-split RoPE pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.quantised_matrix import QuantisationScheme, QuantisedMatrix

if TYPE_CHECKING:
    import torch

STRIP = 1 << 22
"""Values of a strip: a few MB, which are worked on while the rest of a large table stays in its file."""


@dataclass(frozen=True)
class FileSlice:
    """Where a tensor's bytes lie verbatim: `length` bytes at `offset` (both in bytes) of the file `path`."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a checkpoint: its Hugging Face name, its safetensors type (`F32`, `F16`, `BF16`, `F64`), its shape,
    and where its bytes lie when they can be used as they are (None: they must be converted or made). `stored_name` and
    `stored_type` are the file's own where they differ: `blk.0.attn_q.weight`, `Q4_K`. `codes` is the scheme of a matrix
    that the file has quantised in a bundle's way, and whose codes `Checkpoint.read_codes` gives; `order` is the digest
    of their order of inputs (None: as they are)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    location: FileSlice | None = None
    stored_name: str | None = None
    stored_type: str | None = None
    codes: QuantisationScheme | None = None
    order: str | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def rows(self) -> Iterator[slice]:
        """Of each strip in turn."""
        many = max(1, STRIP // max(1, prod(self.shape[1:])))
        return (slice(start, min(start + many, self.shape[0])) for start in range(0, self.shape[0], many))


@dataclass(frozen=True)
class Source:
    """Where a checkpoint came from, as recorded in a manifest. `reference` is the absolute path, Hugging Face id or
    preset that opens it again; `files` are the weight files (none for random weights)."""

    kind: str  # "safetensors", "gguf" or "random"
    reference: str
    files: tuple[Path, ...] = ()
    seed: int | None = None  # of random weights


class Checkpoint(ABC):
    """An opened checkpoint. Opening checks every name, shape and type against the config; values are read later."""

    config: ModelConfig
    source: Source
    entries: Mapping[str, TensorEntry]  # every tensor the model uses, by Hugging Face name
    range_is_stated = True  # max_position_embeddings; False: the config has the default of its family
    folder: Path | None = None  # of a Hugging Face model, with its other files
    notes: tuple[str, ...] = ()  # what the user should know of how it was read, a sentence each

    @property
    def base(self) -> Checkpoint:
        """As it was opened: without the adapter that is merged into it, or a head that was set apart."""
        return self

    @property
    def adapter(self) -> Path | None:
        """The folder of the adapter that is merged into it, if one is."""
        return None

    @abstractmethod
    def read(self, name: str) -> torch.Tensor:
        """The tensor `name` on the CPU in its entry's type and shape.

        Raises UsageError when the file is damaged.
        """

    def strips(self, name: str) -> Iterator[torch.Tensor]:
        """The tensor `name` strip by strip, rows in order: what `read` gives, with a strip in memory where the file
        allows it. At least one dimension.

        Raises UsageError when the file is damaged.
        """
        tensor = self.read(name)
        return (tensor[rows] for rows in self.entries[name].rows())

    def origin(self, name: str) -> str:
        """Another tensor with the same values, which has been read before; `name` itself where there is none."""
        return name

    def read_codes(self, name: str) -> QuantisedMatrix:
        """The matrix `name`, whose entry has `codes`: what the file itself has, which dequantised is what `read` gives.

        Raises UsageError when the file is damaged.
        """
        raise AssertionError(f"{name} of {self.source.reference} has no codes")
