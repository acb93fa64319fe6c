"""What has to be converted is read once, as far as the memory set aside for it goes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

from blockexport.models.checkpoints.kept_tensors import KeptTensors
from blockexport.models.checkpoints.sources import open_checkpoint
from tests.compare.memory_checkpoint import TINY, MemoryCheckpoint, random_checkpoint
from tests.small_models import small_config, small_weights, write_folder


class Counted(MemoryCheckpoint):
    def __init__(self) -> None:
        super().__init__(TINY, random_checkpoint(TINY).tensors)
        self.reads: Counter[str] = Counter()

    def read(self, name: str) -> torch.Tensor:
        self.reads[name] += 1
        return super().read(name)


def test_a_tensor_is_made_once() -> None:
    source = Counted()
    kept = KeptTensors(source)
    for _ in range(3):
        for name in kept.entries:
            assert torch.equal(kept.read(name), MemoryCheckpoint.read(source, name))
    assert set(source.reads) == set(kept.entries) and set(source.reads.values()) == {1}


class Widened(Counted):
    """Made at each reading, as from another type."""

    def read(self, name: str) -> torch.Tensor:
        return super().read(name) * 1.0


def test_what_the_reference_read_can_be_weights_of_a_block() -> None:
    """Reading in inference mode makes tensors that are of no use outside of it."""
    kept = KeptTensors(Widened())
    with torch.inference_mode():
        tensors = [kept.read(name) for name in kept.entries]
    assert not any(tensor.is_inference() for tensor in tensors)


def test_beyond_the_limit_nothing_is_kept_and_nothing_is_dropped() -> None:
    source = Counted()
    first, second = list(source.entries)[:2]
    kept = KeptTensors(source, limit=4 * source.entries[first].size)
    for _ in range(3):
        kept.read(first), kept.read(second)
    assert (source.reads[first], source.reads[second]) == (1, 3)


def test_what_maps_its_file_is_left_to_the_file(tmp_path: Path) -> None:
    config = small_config("llama")
    write_folder(tmp_path, config, small_weights(config))
    source = open_checkpoint(str(tmp_path))
    kept = KeptTensors(source)
    name = "model.norm.weight"
    assert kept.read(name) is not kept.read(name) and torch.equal(kept.read(name), source.read(name))
