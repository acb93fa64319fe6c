"""The TensorRT decoder's bookkeeping on an engine of eager PyTorch, and the whole of it where a GPU is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport.export.bundle.manifest import Manifest, read_manifest
from blockexport.export.tensorrt.trt_network import make_profiles
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint
from blockexport.models.errors import UsageError
from blockexport.models.interface import Ends
from blockexport.models.precision import Precision
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.tensorrt.trt_decoder import TensorRtDecoder
from tests.exported import export, random_model
from tests.runtime.tensorrt.fake_engine import FakeEngine

PROFILES = make_profiles(3, 6)
SLOTS = 29


def pair(folder: Path, **options: Any) -> tuple[TensorRtDecoder, EagerDecoder, FakeEngine]:
    """A TensorRT decoder on a fake engine, and an eager one with the same weights."""
    checkpoint: RandomCheckpoint = random_model()
    manifest: Manifest = export(checkpoint, folder, Precision.FP32, SLOTS, **options)
    model = load_model(checkpoint, torch.float32, SLOTS, ends=Ends.of(**options))
    engine = FakeEngine(manifest, model, PROFILES)
    return TensorRtDecoder(manifest, engine, PROFILES, torch.device("cpu")), EagerDecoder(model, SLOTS), engine


def inputs_for(decoder: TensorRtDecoder, batch_size: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    if decoder.headless:
        return torch.randn(batch_size, length, decoder.config.hidden_size, generator=generator)
    return torch.randint(0, decoder.config.vocab_size, (batch_size, length), generator=generator)


@pytest.mark.parametrize("options", [{}, {"headless": True}, {"last_logits_only": True}])
def test_prefill_in_chunks_and_decode_to_the_last_slot_equal_eager(options: dict[str, bool], tmp_path: Path) -> None:
    decoder, eager, engine = pair(tmp_path, **options)
    chunk = inputs_for(decoder, 2, 15)  # more than the engine's six: three runs
    lengths_B = torch.tensor([15, 11])
    for one in (decoder, eager):
        one.reset(2)
    torch.testing.assert_close(decoder.prefill(chunk, lengths_B), eager.prefill(chunk, lengths_B))
    assert [run for context in engine.contexts for run in context.runs] == [(2, 6), (2, 6), (2, 3)]
    for _ in range(SLOTS - 15):
        token = inputs_for(decoder, 2, 1)
        torch.testing.assert_close(decoder.step(token), eager.step(token))
    assert engine.contexts[1].runs == [(2, 1)] * (SLOTS - 15)  # the decode profile's own context
    for layer in range(decoder.config.num_hidden_layers):
        for found, expected in zip(decoder.cache(layer), eager.cache(layer), strict=True):
            assert found.abs().sum() > 0
            torch.testing.assert_close(found, expected)
    with pytest.raises(UsageError, match="need 30 cache slots, and there are 29"):
        decoder.step(inputs_for(decoder, 2, 1))


def test_the_cache_is_one_buffer_for_past_and_present_and_new_after_reset(tmp_path: Path) -> None:
    decoder, _, engine = pair(tmp_path)
    decoder.prefill(inputs_for(decoder, 1, 4))
    addresses = engine.contexts[0].addresses
    for layer in range(decoder.config.num_hidden_layers):
        for kind, tensor in zip(("key", "value"), decoder.cache(layer), strict=True):
            assert addresses[f"past_key_values.{layer}.{kind}"] == tensor.data_ptr()
            assert addresses[f"present.{layer}.{kind}"] == tensor.data_ptr()
    assert len(set(addresses.values())) == 2 * decoder.config.num_hidden_layers + 3
    decoder.reset(3)
    assert decoder.cache(0)[0].shape[0] == 3
    assert decoder.cache(0)[0].abs().sum() == 0


def test_a_single_token_prefill_goes_through_the_decode_profile(tmp_path: Path) -> None:
    decoder, eager, engine = pair(tmp_path)
    chunk = inputs_for(decoder, 1, 7)  # six and one
    torch.testing.assert_close(decoder.prefill(chunk), eager.prefill(chunk))
    assert (engine.contexts[0].runs, engine.contexts[1].runs) == ([(1, 6)], [(1, 1)])


def test_more_rows_than_the_engine_has_are_refused(tmp_path: Path) -> None:
    decoder, _, _ = pair(tmp_path)
    with pytest.raises(UsageError, match="4 rows were asked of an engine built for at most 3"):
        decoder.reset(4)


def test_an_engine_of_another_graph_is_refused(tmp_path: Path) -> None:
    decoder, _, engine = pair(tmp_path)
    manifest = read_manifest(tmp_path)
    engine.ports = engine.ports[:-1]
    with pytest.raises(UsageError, match=r"present\.2\.value"):
        TensorRtDecoder(manifest, engine, PROFILES, torch.device("cpu"))
    _, _, copying = pair(tmp_path / "other")
    copying.get_aliased_input_tensor = lambda name: None  # type: ignore[method-assign]
    with pytest.raises(UsageError, match=r"does not update past_key_values\.0\.key in place"):
        TensorRtDecoder(manifest, copying, PROFILES, torch.device("cpu"))
    assert decoder.batch_size == 1
