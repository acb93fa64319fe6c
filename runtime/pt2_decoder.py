"""A bundle's `model.pt2` behind the Decoder interface, run by PyTorch from the file alone."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from blockexport.export.manifest import PT2_FILE, Manifest
from blockexport.models.cache import empty_cache
from blockexport.models.errors import UsageError
from blockexport.runtime.decoder import Decoder


class Pt2Decoder(Decoder):
    """The exported program of a bundle. It is pure: each run hands back new caches."""

    def __init__(self, folder: Path, manifest: Manifest, *, max_sequence_length: int | None = None) -> None:
        path = folder / PT2_FILE
        if not path.is_file():
            raise UsageError(f"{folder} has no {PT2_FILE}: export with --pt2 to have one")
        self.config = manifest.config
        self.max_sequence_length = max_sequence_length or manifest.max_sequence_length
        if not 2 <= self.max_sequence_length <= manifest.rope_table_rows:
            raise UsageError(
                f"max_sequence_length {self.max_sequence_length} is outside 2..{manifest.rope_table_rows}, the rows of "
                "this file's RoPE table: export again with a larger --max-sequence-length"
            )
        self.dtype = manifest.precision.torch_dtype
        self.last_logits_only = manifest.last_logits_only
        self.headless = manifest.headless
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's deserialiser about its own pytree
                self._program = torch.export.load(path).module()
        except Exception as error:  # a zip, pickle or schema error, depending on where the damage is
            raise UsageError(f"PyTorch {torch.__version__} does not load {path}: {error}") from error
        self.reset()

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's key and value as of the last run, [B, K, M, H] each."""
        return self._past[2 * layer], self._past[2 * layer + 1]

    def _allocate(self, batch_size: int) -> None:
        self._past = empty_cache(self.config, batch_size, self.max_sequence_length, self.dtype)

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            outputs, self._past = self._program(inputs, position_ids_BS.contiguous(), self._past)
        result: torch.Tensor = outputs
        return result
