"""Seeded random weights for a config: a model of any size to export and time without its checkpoint.

Each tensor's generator is seeded with the seed and the tensor's name, so that tensors can be made in any order, one at
a time, and always come out the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from blockexport.models.checkpoints.checkpoint import Checkpoint, Source, TensorEntry
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD, expected_tensors
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.element_types import BY_NAME, BY_SAFETENSORS

if TYPE_CHECKING:
    import torch

LOGIT_STD = 2.5
"""Rough spread of the logits: wide enough that one token leads, narrow enough that softmax does not saturate."""

BIAS_STD = 0.2

_PART = 1 << 20  # values that are in memory in float32 at a time


class RandomCheckpoint(Checkpoint):
    """Weights made on demand, in the config's dtype.

    Matrices have a standard deviation of 1/sqrt(columns), which keeps activations near 1 at every depth; the table that
    gives the logits is 2.5 times that. Norm gains, with what a norm adds to them, are uniform in
    [0.75, 1.25]: not 1, so that a dropped gain shows.

    Args:
        config: what to make weights for.
        seed: other seeds give other weights.
        reference: the preset's name, for the record.
        std: one standard deviation for all matrices instead of the one above.
    """

    def __init__(self, config: ModelConfig, seed: int, reference: str, std: float | None = None) -> None:
        self.config = config
        self.source = Source("random", reference, seed=seed)
        self._seed = seed
        self._std = std
        dtype = BY_NAME[config.dtype].safetensors
        self.entries: Mapping[str, TensorEntry] = {
            name: TensorEntry(name, dtype, shape) for name, shape in expected_tensors(config).items()
        }

    def read(self, name: str) -> torch.Tensor:
        """See `Checkpoint.read`."""
        import torch

        entry = self.entries[name]
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
        low, high = self._range(entry)
        values = torch.empty(entry.size, dtype=BY_SAFETENSORS[entry.dtype].torch_dtype)
        for part in values.split(_PART):
            # Uniform: the same bits on every machine, normal ones are not.
            made = generator.random(len(part), dtype=np.float32)
            made *= np.float32(high - low)
            made += np.float32(low)
            part.copy_(torch.from_numpy(made))
        return values.view(entry.shape)

    def _range(self, entry: TensorEntry) -> tuple[float, float]:
        if entry.name.endswith("norm.weight"):
            return (-0.25, 0.25) if self.config.norm_gain_offset else (0.75, 1.25)
        half_width = math.sqrt(3) * self._spread(entry)  # of a uniform distribution of that standard deviation
        return -half_width, half_width

    def _spread(self, entry: TensorEntry) -> float:
        if len(entry.shape) == 1:
            return BIAS_STD
        if self._std is not None:
            return self._std
        gain = LOGIT_STD if entry.name in (EMBEDDING, OUTPUT_HEAD) else 1.0
        return gain / math.sqrt(entry.shape[1])
