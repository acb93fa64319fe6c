"""Errors of matrices against sums by hand, and the kind of matrices that costs most."""

from __future__ import annotations

import pytest
import torch

from blockexport.compare.core.matrix_cost import kind_costs
from blockexport.compare.report.error_map import NONE, error_map
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD
from blockexport.runtime.eager import EagerDecoder
from tests.compare.memory_checkpoint import MemoryCheckpoint, eager_model
from tests.small_models import small_config, small_weights

DOWN, UP = "model.layers.2.mlp.down_proj.weight", "model.layers.{}.mlp.up_proj.weight"
IDS = torch.randint(0, 97, (300,), generator=torch.Generator().manual_seed(3))


class Coarse(Checkpoint):
    """A checkpoint whose matrices have lost a share of their values, each as much as it is told."""

    def __init__(self, original: MemoryCheckpoint, shares: dict[str, float]) -> None:
        self.original, self.shares = original, shares
        self.config, self.source, self.entries = original.config, original.source, original.entries

    def read(self, name: str) -> torch.Tensor:
        return self.original.read(name) * (1 - self.shares.get(name, 0))


@pytest.fixture(scope="module")
def original() -> MemoryCheckpoint:
    config = small_config("llama", max_position_embeddings=64)
    return MemoryCheckpoint(config, small_weights(config))


def test_errors_and_costs_of_each_kind(original: MemoryCheckpoint) -> None:
    shares = {EMBEDDING: 0.0, UP.format(0): 0.125, UP.format(1): 0.5, UP.format(2): 0.25, DOWN: 0.01, OUTPUT_HEAD: 0.75}
    decoder = EagerDecoder(eager_model(original), 64)
    before = {name: values.clone() for name, values in decoder.model.state_dict().items()}
    told: list[tuple[int, int]] = []
    found = kind_costs(
        Coarse(original, shares), list(shares), decoder, IDS, lambda label, done, total: told.append((done, total))
    )
    assert [kind.kind for kind in found] == ["embed_tokens", "up_proj", "down_proj", "lm_head"]
    nothing, up, down, head = found
    assert [one.layer for one in up.errors] == [0, 1, 2]
    assert [one.error for one in up.errors] == pytest.approx([0.125, 0.5, 0.25], rel=1e-5)
    assert up.median == pytest.approx(0.25, rel=1e-5) and up.worst.layer == 1
    assert nothing.kl_mean == 0 < down.kl_mean < up.kl_mean < head.kl_mean
    assert head.errors[0].layer is None
    assert all(torch.equal(values, before[name]) for name, values in decoder.model.state_dict().items())
    assert told == [(i, 4) for i in range(5)]


def test_the_picture_has_a_place_for_every_matrix(original: MemoryCheckpoint) -> None:
    shares = {UP.format(0): 0.1, UP.format(2): 0.6, OUTPUT_HEAD: 0.35}
    drawn = error_map(kind_costs(Coarse(original, shares), list(shares), EagerDecoder(eager_model(original), 64), IDS))
    assert drawn is not None
    assert drawn.columns == ["0", "1", "2", NONE] and drawn.legend[0] == "10.00% to 20.00%"
    (_, up), (_, head) = drawn.rows
    assert [cell and (cell.shade, cell.title) for cell in up] == [
        (1, "up_proj, layer 0: 10.00%"),
        None,
        (5, "up_proj, layer 2: 60.00%"),
        None,
    ]
    assert [cell and (cell.shade, cell.title) for cell in head] == [None, None, None, (3, "lm_head: 35.00%")]
    assert error_map(()) is None
