"""ONNX Runtime's caches begin with few slots and grow with the context; outputs are those of a cache of all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from blockexport.models.errors import UsageError
from blockexport.runtime import onnx_decoder
from blockexport.runtime.open import open_decoder
from tests.exported import export, random_model

SLOTS, FIRST = 29, 3


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    export(random_model(), folder, slots=SLOTS)
    return folder


@pytest.fixture(autouse=True)
def few_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_decoder, "FIRST_SLOTS", FIRST)


def test_rows_of_unequal_length_to_the_last_slot(bundle: Path) -> None:
    growing, whole = open_decoder(bundle, threads=1), open_decoder(bundle, threads=1, exact=True)
    ids = torch.randint(0, 101, (2, SLOTS), generator=torch.Generator().manual_seed(5))
    held = []
    for decoder in (growing, whole):
        decoder.reset(2)
        assert decoder.max_sequence_length == SLOTS
    for call in [ids[:, :2], *ids[:, 2:9].split(1, dim=1), ids[:, 9:15], *ids[:, 15:].split(1, dim=1)]:
        lengths = torch.tensor([2, 1]) if call.shape[1] == 2 else None
        found, wanted = (decoder.prefill(call, lengths) for decoder in (growing, whole))
        valid = found.shape[1] if lengths is None else 1
        torch.testing.assert_close(found[:, :valid], wanted[:, :valid], rtol=1e-5, atol=1e-5)
        held.append(growing._past[0].shape[2])
    assert held[:6] == [3, 3, 6, 6, 6, 12] and held[-1] == SLOTS
    assert whole._past[0].shape[2] == SLOTS
    with pytest.raises(UsageError, match="need 30 cache slots, and there are 29"):
        growing.step(ids[:, :1])
    growing.reset(1)
    assert growing._past[0].shape == (1, 2, FIRST, 10)


def test_who_looks_into_the_cache_sees_every_slot_and_can_write_there(bundle: Path) -> None:
    decoder = open_decoder(bundle, threads=1)
    decoder.prefill(torch.tensor([[7, 3]]))
    expected = decoder.forward(torch.tensor([[60]]), torch.tensor([[2]]))
    key_BKMH, value_BKMH = decoder.cache(0)
    assert key_BKMH.shape[2] == value_BKMH.shape[2] == SLOTS
    assert bool(key_BKMH[:, :, :3].any()) and not bool(key_BKMH[:, :, 3:].any())
    key_BKMH[:, :, 3:] = 1e4  # unwritten: has no influence
    torch.testing.assert_close(
        decoder.forward(torch.tensor([[60]]), torch.tensor([[2]])), expected, rtol=1e-5, atol=1e-5
    )
    value_BKMH[:, :, 0] += 1
    assert not torch.allclose(decoder.forward(torch.tensor([[60]]), torch.tensor([[2]])), expected, atol=1e-3)


def test_another_m_is_where_it_ends(bundle: Path) -> None:
    decoder = open_decoder(bundle, threads=1, max_sequence_length=7)
    decoder.prefill(torch.arange(7)[None])
    assert decoder._past[0].shape[2] == 7
    with pytest.raises(UsageError, match="there are 7"):
        decoder.step(torch.tensor([[1]]))
