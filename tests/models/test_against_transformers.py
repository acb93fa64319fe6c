"""Eager against transformers, whatever the family and however it was saved: the same logits at every position, and what
must hold of every block."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from blockexport.models.block.cache import empty_cache
from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.config.arithmetic import count_parameters
from blockexport.models.families.every_family import FAMILIES as RECORDS
from tests.transformers_models import FAMILIES, POSITIONS, make_model, save_model, some_ids

LENGTH = 500
CALLS = (0, 331, 332, 397, 398, LENGTH)
"""Where the calls begin whose tokens together are the whole: a prompt, single steps, and chunks."""


def in_calls(model: DecoderModel, ids_BS: torch.Tensor, starts: tuple[int, ...] = (0, LENGTH)) -> torch.Tensor:
    """Logits of every position, of calls one after another."""
    past, found = empty_cache(model.config, ids_BS.shape[0], POSITIONS, torch.float32), list[torch.Tensor]()
    for start, end in pairwise(starts):
        positions_BS = torch.arange(start, end).expand(ids_BS.shape[0], -1)
        logits, past = model(ids_BS[:, start:end], positions_BS, past)
        found.append(logits)
    return torch.cat(found, 1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("tied", "sharded", "dtype"),
    [(False, False, torch.float32), (True, True, torch.bfloat16)],
    ids=["whole", "sharded"],
)
def test_the_logits_of_transformers_causality_steps_and_the_number_of_parameters(
    family: str, tied: bool, sharded: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    theirs = save_model(make_model(family, tied=tied), tmp_path, dtype=dtype, sharded=sharded)
    assert (tmp_path / "model.safetensors.index.json").exists() is sharded
    ids_BS = some_ids(LENGTH)
    expected = theirs(ids_BS).logits
    assert expected.std() > 1, "a model whose logits are all alike proves nothing"
    checkpoint = open_checkpoint(str(tmp_path))
    model = load_model(checkpoint, torch.float32, POSITIONS)
    logits = in_calls(model, ids_BS)
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(in_calls(model, ids_BS, CALLS), expected, rtol=1e-4, atol=1e-4)
    changed_BS = ids_BS.clone()
    changed_BS[:, 397:] = (changed_BS[:, 397:] + 1) % checkpoint.config.vocab_size
    after = in_calls(model, changed_BS)
    assert torch.equal(after[:, :397], logits[:, :397]) and not torch.isclose(after, logits)[:, 397].all()
    assert count_parameters(checkpoint.config).total == sum(weight.numel() for weight in theirs.parameters())


def test_no_family_is_without_a_model_here() -> None:
    assert {make().model_type for make in FAMILIES.values()} == RECORDS.keys()
