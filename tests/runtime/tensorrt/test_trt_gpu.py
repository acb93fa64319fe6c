"""Engines executed on a GPU against eager PyTorch: `make test-gpu`.

Each test builds for the GPU in the machine, with every installed backend that serves it. Limits are the noise of the
precision, measured on eager PyTorch itself in the same run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport.export.bundle.manifest import Manifest, read_manifest
from blockexport.export.bundle.trt_library import TRT_BACKENDS
from blockexport.export.tensorrt.trt_adapter import Adapter, load_backend
from blockexport.export.tensorrt.trt_network import make_profiles
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import BlockexportError, UsageError
from blockexport.models.precision import Precision
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.tensorrt.trt_decoder import TensorRtDecoder
from tests.export.tensorrt.trt_support import add_engine
from tests.exported import export, random_model
from tests.support import shared_path, smollm2_gguf

pytestmark = pytest.mark.gpu

ROWS, PREFILL, SLOTS = 3, 24, 64


@pytest.fixture(params=TRT_BACKENDS)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    """Each backend that is installed and serves this GPU; `make test-gpu` does not begin where there is none at all."""
    try:
        load_backend(request.param).targets(())
    except BlockexportError as error:
        pytest.skip(str(error))
    return load_backend(request.param)


def make_bundle(
    adapter: Adapter, checkpoint: Checkpoint, folder: Path, precision: Precision, slots: int = SLOTS, **options: Any
) -> Manifest:
    """A bundle with an engine for this GPU."""
    manifest = export(checkpoint, folder, precision, slots)
    return add_engine(folder, manifest, adapter, adapter.targets(()), make_profiles(ROWS, PREFILL), **options)[1]


def whole_run(decoder: Decoder, ids: torch.Tensor, prompt: int) -> torch.Tensor:
    """Logits of a prompt in two chunks and of every further token, step by step: [B, S, V] in float64."""
    decoder.reset(ids.shape[0])
    pieces = [decoder.prefill(ids[:, : prompt // 2]), decoder.prefill(ids[:, prompt // 2 : prompt])]
    pieces += [decoder.step(ids[:, i : i + 1]) for i in range(prompt, ids.shape[1])]
    return torch.cat(pieces, dim=1).double().cpu()


def assert_within_noise(found: torch.Tensor, checkpoint: Checkpoint, ids: torch.Tensor, precision: Precision) -> None:
    """Against float64: at most 1.5 times eager's own aggregate error in this precision, or 8 times at any position."""

    def eager(dtype: torch.dtype) -> torch.Tensor:
        return whole_run(EagerDecoder(load_model(checkpoint, dtype, SLOTS), SLOTS), ids, ids.shape[1] // 2)

    exact, rounded = eager(torch.float64), eager(precision.torch_dtype)
    assert torch.isfinite(found).all()
    error, floor = (found - exact).square().mean(-1).sqrt(), (rounded - exact).square().mean(-1).sqrt()
    assert error.square().mean().sqrt() <= 1.5 * floor.square().mean().sqrt()
    assert error.max() <= 8 * floor.max()


@pytest.mark.parametrize("precision", list(Precision))
def test_prefill_and_every_step_to_the_last_slot(precision: Precision, adapter: Adapter, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(shared_path("models/stories260K")))
    manifest = make_bundle(adapter, checkpoint, tmp_path, precision)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, checkpoint.config.vocab_size, (ROWS, SLOTS), generator=generator)
    decoder = TensorRtDecoder.open(tmp_path, manifest, adapter.name)
    assert_within_noise(whole_run(decoder, ids, SLOTS // 2), checkpoint, ids, precision)
    with pytest.raises(UsageError, match="cache slots"):
        decoder.step(ids[:, :1])


@pytest.mark.parametrize("changes", [{"head_dim": 64}, {"head_dim": 64, "layer_types": ("sliding_attention",) * 3}])
def test_fused_attention_with_and_without_a_window(changes: dict[str, Any], adapter: Adapter, tmp_path: Path) -> None:
    checkpoint = random_model(**changes)
    manifest = make_bundle(adapter, checkpoint, tmp_path, Precision.FP16)
    ids = torch.randint(0, checkpoint.config.vocab_size, (ROWS, SLOTS), generator=torch.Generator().manual_seed(2))
    decoder = TensorRtDecoder.open(tmp_path, manifest, adapter.name)
    assert_within_noise(whole_run(decoder, ids, SLOTS // 2), checkpoint, ids, Precision.FP16)


def test_replayed_steps_equal_steps_without_a_recording(adapter: Adapter, tmp_path: Path) -> None:
    checkpoint = random_model(head_dim=64)
    manifest = make_bundle(adapter, checkpoint, tmp_path, Precision.FP16)
    ids = torch.randint(0, checkpoint.config.vocab_size, (2, 40), generator=torch.Generator().manual_seed(3))
    recorded, plain = (TensorRtDecoder.open(tmp_path, manifest, adapter.name, cuda_graph=on) for on in (True, False))
    assert torch.equal(whole_run(recorded, ids, 10), whole_run(plain, ids, 10))
    assert any(isinstance(step.graph, torch.cuda.CUDAGraph) for step in recorded._steps.values())
    assert not plain._steps


def test_a_row_is_the_same_alone_and_beside_shorter_ones(adapter: Adapter, tmp_path: Path) -> None:
    checkpoint = random_model(head_dim=64)
    manifest = make_bundle(adapter, checkpoint, tmp_path, Precision.FP16)
    ids = torch.randint(0, checkpoint.config.vocab_size, (3, 20), generator=torch.Generator().manual_seed(4))
    decoder = TensorRtDecoder.open(tmp_path, manifest, adapter.name)
    lengths = [20, 11, 4]
    decoder.reset(3)
    together = decoder.prefill(ids, torch.tensor(lengths))
    next_together = decoder.step(ids[:, :1])
    for row, length in enumerate(lengths):
        decoder.reset(1)
        alone = decoder.prefill(ids[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0], atol=0.02, rtol=0.02)
        torch.testing.assert_close(next_together[row], decoder.step(ids[row : row + 1, :1])[0], atol=0.02, rtol=0.02)


def test_a_stripped_engine_is_refitted_from_the_bundle(adapter: Adapter, tmp_path: Path) -> None:
    checkpoint = random_model(head_dim=64)
    whole = make_bundle(adapter, checkpoint, tmp_path / "whole", Precision.FP16)
    stripped = make_bundle(adapter, checkpoint, tmp_path / "stripped", Precision.FP16, strip_weights=True)
    sizes = [next(m.files[name].bytes for name in m.engines) for m in (stripped, whole)]
    assert sizes[0] < sizes[1]
    ids = torch.randint(0, checkpoint.config.vocab_size, (2, 30), generator=torch.Generator().manual_seed(5))
    runs = [
        whole_run(TensorRtDecoder.open(tmp_path / name, manifest, adapter.name), ids, 10)
        for name, manifest in (("whole", whole), ("stripped", stripped))
    ]
    torch.testing.assert_close(runs[1], runs[0], atol=0.02, rtol=0.02)


def test_lengths_beside_the_mask_change_nothing(adapter: Adapter, tmp_path: Path) -> None:
    if adapter.is_rtx:
        pytest.skip("tensorrt-rtx emits the same kernels with lengths and without: refused there")
    checkpoint = random_model(head_dim=64)
    manifest = make_bundle(adapter, checkpoint, tmp_path, Precision.FP16, key_value_lengths=True)
    ids = torch.randint(0, checkpoint.config.vocab_size, (ROWS, SLOTS), generator=torch.Generator().manual_seed(6))
    decoder = TensorRtDecoder.open(tmp_path, manifest, adapter.name)
    assert_within_noise(whole_run(decoder, ids, SLOTS // 2), checkpoint, ids, Precision.FP16)


def test_an_engine_for_another_gpu_is_refused(adapter: Adapter, tmp_path: Path) -> None:
    if not adapter.is_rtx:
        pytest.skip("standard TensorRT builds for this GPU only")
    checkpoint = random_model(head_dim=64)
    make_bundle(adapter, checkpoint, tmp_path, Precision.FP16)
    (own,) = adapter.targets(())
    other = next(target for target in adapter.served_capabilities() if target != own)
    manifest = read_manifest(tmp_path)
    (entry,) = manifest.engines.values()
    entry["compute_capabilities"] = [other]
    with pytest.raises(UsageError, match=f"for compute capability {other} and this GPU has {own}"):
        TensorRtDecoder.open(tmp_path, manifest, adapter.name)


def test_smollm2_says_paris(adapter: Adapter, tmp_path: Path) -> None:
    from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
    from blockexport.runtime.text.generate import Generation

    checkpoint = open_checkpoint(str(smollm2_gguf()))
    manifest = make_bundle(adapter, checkpoint, tmp_path, Precision.FP16, slots=512)
    tokenizer = BundleTokenizer(tmp_path)
    prompt = tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    decoder = TensorRtDecoder.open(tmp_path, manifest, adapter.name)
    options = tokenizer.sampling_options(0.0, None, None, 0)
    answer = Generation(decoder, prompt, options, tokenizer.stop_ids, 32)
    assert "Paris" in tokenizer.decode(list(answer))
