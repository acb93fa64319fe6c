"""The run that quantising is calibrated on sees what enters each matrix of the whole model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from blockexport.export.weights import calibration as module
from blockexport.export.weights.calibration import Calibration
from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.tensor_names import OUTPUT_HEAD
from tests.compare.memory_checkpoint import eager_model
from tests.exported import EVERYTHING, gainful

WINDOW = 12  # longer than the sliding window of the second layer


@pytest.mark.parametrize("tied", [True, False])
def test_products_are_those_of_the_whole_model(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", WINDOW)
    checkpoint = gainful(replace(EVERYTHING, tie_word_embeddings=tied))
    ids_S = torch.randint(0, checkpoint.config.vocab_size, (31,), generator=torch.Generator().manual_seed(0))
    model, seen = eager_model(checkpoint), dict[str, list[torch.Tensor]]()
    for name, layer in model.model.named_modules():
        if isinstance(layer, nn.Linear):
            seen[f"model.{name}.weight"] = []
            layer.register_forward_pre_hook(lambda _, given, name=name: seen[f"model.{name}.weight"].append(given[0]))
    seen[OUTPUT_HEAD] = []
    model.model.norm.register_forward_hook(lambda *given: seen[OUTPUT_HEAD].append(given[2]))
    with torch.inference_mode():
        for window in ids_S.split(WINDOW):
            model(window[None], torch.arange(len(window))[None], empty_cache(model.config, 1, WINDOW, torch.float32))
    calibration = Calibration(checkpoint, ids_S)
    assert len(seen) == 7 * 3 + 1
    for name, parts in seen.items():
        x_TK = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts]).double()
        wanted_KK = x_TK.T @ x_TK / 31
        assert len(x_TK) == 31, name
        found_KK = calibration.products(name)
        assert float((found_KK.double() - wanted_KK).norm() / wanted_KK.norm()) < 1e-6, name


def test_a_digest_tells_texts_apart() -> None:
    checkpoint = gainful(EVERYTHING)
    one, same, other = (Calibration(checkpoint, torch.tensor(ids)).digest for ids in ([1, 2], [1, 2], [2, 1]))
    assert one == same != other and len(one) == 64
