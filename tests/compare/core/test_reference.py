"""The float64 reference against golden figures, against the cached path, and block sizes that must not matter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
import torch

from blockexport.compare.core import reference, weights_in_parts
from blockexport.compare.core.reference import Reference
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.interface import Ends
from blockexport.runtime.eager import EagerDecoder
from tests.support import shared_path


def ids_of(length: int, vocab: int = 101, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, vocab, (1, length), generator=torch.Generator().manual_seed(seed))


def reference_logits(
    checkpoint: Checkpoint,
    ids_1S: torch.Tensor,
    positions: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    kept = range(ids_1S.shape[1]) if positions is None else positions
    return Reference(checkpoint, dtype).run([ids_1S[0]], [kept])[0][None]


def test_stories_equals_the_golden_float64_logits(stories: Checkpoint) -> None:
    golden = json.loads(shared_path("models/stories260K/golden.json").read_text())
    ids = torch.tensor([golden["ids"]])
    got = reference_logits(stories, ids, positions=[0, ids.shape[1] - 1])[0]
    want = torch.tensor([golden["logits_step0_f64"], golden["logits_last_f64"]], dtype=torch.float64)
    torch.testing.assert_close(got[0], want[0], rtol=0, atol=1e-9)
    # The golden run turned by a float64 table; ours is the float32 table the model is served with.
    torch.testing.assert_close(got[1], want[1], rtol=0, atol=2e-5)


def test_equals_the_cached_path_in_float64(tiny: Checkpoint, eager: Callable[..., EagerDecoder]) -> None:
    ids = ids_of(70)
    decoder = eager(tiny, 70, torch.float64)
    cached = torch.cat([decoder.prefill(ids[:, :33])] + [decoder.step(ids[:, i : i + 1]) for i in range(33, 70)], 1)
    torch.testing.assert_close(reference_logits(tiny, ids), cached, rtol=0, atol=1e-10)


@pytest.mark.parametrize("block", [1, 7, 64])
def test_block_sizes_change_nothing(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    ids = ids_of(70)
    whole = reference_logits(tiny, ids, positions=[0, 11, 69])
    for module, name in ((reference, "QUERY_BLOCK"), (reference, "TOKEN_BLOCK"), (weights_in_parts, "VOCAB_BLOCK")):
        monkeypatch.setattr(module, name, block)
    torch.testing.assert_close(reference_logits(tiny, ids, positions=[0, 11, 69]), whole, rtol=0, atol=1e-10)


def test_sequences_of_one_pass_do_not_mix(tiny: Checkpoint) -> None:
    long, short = ids_of(40)[0], ids_of(9, seed=2)[0]
    both = Reference(tiny).run([long, short], [[3, 39], [8]])
    torch.testing.assert_close(both[0], Reference(tiny).run([long], [[3, 39]])[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(both[1], Reference(tiny).run([short], [[8]])[0], rtol=0, atol=1e-12)


def test_lower_precision_shows_its_cost(tiny: Checkpoint) -> None:
    ids = ids_of(50)
    exact = reference_logits(tiny, ids)
    single = reference_logits(tiny, ids, dtype=torch.float32)
    rounded = Reference(tiny, round_weights_to=torch.float16).run([ids[0]], [range(50)])[0]
    half = reference_logits(tiny, ids, dtype=torch.float16)
    error = [float((x.double() - exact).square().mean().sqrt()) for x in (single, rounded[None], half)]
    assert single.dtype == torch.float32 and rounded.dtype == torch.float64 and half.dtype == torch.float16
    assert 1e-8 < error[0] < error[1] / 100 < error[2] / 100


def test_headless_gives_normed_hidden_states(tiny: Checkpoint) -> None:
    ids = ids_of(20)[0]
    hidden = Reference(tiny, ends=Ends.HIDDEN_STATES).run([ids], [[4, 19]])[0]
    logits = Reference(tiny).run([ids], [[4, 19]])[0]
    torch.testing.assert_close(hidden @ tiny.read("lm_head.weight").double().T, logits, rtol=0, atol=1e-10)


BIG = """
import resource, torch
from blockexport.compare.core.reference import Reference
from blockexport.models.checkpoints.sources import open_checkpoint

checkpoint = open_checkpoint("llama-3.2-1b")
(logits,) = Reference(checkpoint).run([torch.arange(512) * 200], [range(512)])
assert logits.shape == (1, 512, 128256) and logits.dtype == torch.float64 and bool(logits.isfinite().all())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # KiB
"""


@pytest.mark.full
def test_a_model_of_a_billion_parameters_stays_under_6_gb() -> None:
    """Its weights alone are 9.9 GB in float64."""
    done = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 6e9
