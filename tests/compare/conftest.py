"""Checkpoints and decoders that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file

from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.runtime.eager import EagerDecoder
from tests.compare.memory_checkpoint import STORIES_CONFIG, TINY, MemoryCheckpoint, eager_model, random_checkpoint
from tests.support import shared_path


@pytest.fixture(scope="session")
def tiny() -> MemoryCheckpoint:
    return random_checkpoint(TINY)


@pytest.fixture(scope="session")
def stories() -> MemoryCheckpoint:
    return MemoryCheckpoint(STORIES_CONFIG, load_file(shared_path("models/stories260K/model.safetensors")))


@pytest.fixture
def eager() -> Callable[..., EagerDecoder]:
    """`eager(checkpoint, max_sequence_length, dtype)`: a decoder with nothing wrong."""

    def make(checkpoint: Checkpoint, max_sequence_length: int, dtype: torch.dtype = torch.float32) -> EagerDecoder:
        return EagerDecoder(eager_model(checkpoint, dtype), max_sequence_length)

    return make
