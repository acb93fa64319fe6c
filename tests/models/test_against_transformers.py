"""Eager against transformers: the same logits at every position, whatever the family and however it was saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from tests.transformers_models import FAMILIES, POSITIONS, make_model, save_model, some_ids

LENGTH = 500


def eager_logits(folder: Path, ids_BS: torch.Tensor) -> torch.Tensor:
    checkpoint = open_checkpoint(str(folder))
    model = load_model(checkpoint, torch.float32, POSITIONS)
    positions_BS = torch.arange(ids_BS.shape[1]).expand(ids_BS.shape)
    past = empty_cache(checkpoint.config, ids_BS.shape[0], POSITIONS, torch.float32)
    logits: torch.Tensor = model(ids_BS, positions_BS, past)[0]
    return logits


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("tied", "sharded", "dtype"),
    [(False, False, torch.float32), (True, True, torch.bfloat16)],
    ids=["whole", "sharded"],
)
def test_the_same_logits_at_every_position(
    family: str, tied: bool, sharded: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    theirs = save_model(make_model(family, tied=tied), tmp_path, dtype=dtype, sharded=sharded)
    assert (tmp_path / "model.safetensors.index.json").exists() is sharded
    ids_BS = some_ids(LENGTH)
    expected = theirs(ids_BS).logits
    assert expected.std() > 1, "a model whose logits are all alike proves nothing"
    torch.testing.assert_close(eager_logits(tmp_path, ids_BS), expected)
