"""The eager path by layers, and the catalogue: each defect changes what it says and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from blockexport.compare.core.cached_path import CachedPath, Case, defective
from blockexport.compare.core.defect import NOTHING_WRONG, Defect, LayerBlock
from blockexport.compare.core.weights_in_parts import make_block
from blockexport.compare.explain.defects import catalogue
from blockexport.compare.explain.defects_block import order_defects
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.interface import Ends
from blockexport.runtime.eager import EagerDecoder
from tests.exported import EVERYTHING, gainful
from tests.zoo import models

SLOTS = 20
CALLS = [range(7), range(7, 8), range(8, 9), range(9, 12), range(12, 13)]
IDS = torch.randint(0, EVERYTHING.vocab_size, (13,), generator=torch.Generator().manual_seed(8))
SEEN = list(range(13))


def path(config: ModelConfig = EVERYTHING, dtype: torch.dtype = torch.float32, ends: Ends = Ends.LOGITS) -> CachedPath:
    return CachedPath(gainful(config), dtype, IDS, CALLS, SLOTS, ends)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_by_layers_gives_the_bits_of_eager_by_calls(dtype: torch.dtype) -> None:
    decoder = EagerDecoder(load_model(gainful(EVERYTHING), dtype, SLOTS), SLOTS)
    by_calls = torch.cat([decoder.prefill(IDS[None, call.start : call.stop])[0] for call in CALLS])
    by_layers = path(dtype=dtype).run_clean(SEEN)
    # The head's product runs on other numbers of rows at a time, which may order its sums anew.
    torch.testing.assert_close(
        by_layers, by_calls, rtol=0, atol=16 * torch.finfo(dtype).eps * float(by_calls.abs().max())
    )


def test_headless_gives_normed_hidden_states() -> None:
    hidden, logits = path(ends=Ends.HIDDEN_STATES).run_clean(SEEN), path().run_clean(SEEN)
    head = gainful(EVERYTHING).read("lm_head.weight")
    torch.testing.assert_close(hidden @ head.T, logits, rtol=1e-5, atol=1e-5)


def defects() -> list[tuple[str, Defect]]:
    """Every defect once, with the zoo's model that has a place for it."""
    found: dict[str, tuple[str, Defect]] = {}
    for name, config in models(EVERYTHING).items():
        for defect in catalogue(config, position=9):
            found.setdefault(defect.name, (name, defect))
    return list(found.values())


@pytest.mark.parametrize(("model", "defect"), defects(), ids=lambda x: getattr(x, "name", ""))
def test_each_defect_moves_the_logits_and_leaves_the_weights(model: str, defect: Defect) -> None:
    here = path(models(EVERYTHING)[model])
    clean, wrong, again = here.run([Case(), Case(defect), Case()], SEEN)
    noise = float((clean.double() - path(here.config, torch.float64).run_clean(SEEN)).square().mean().sqrt())
    moved = float((wrong - clean).square().mean().sqrt())
    assert torch.isfinite(wrong).all()
    # The mildest (1e-12 for an epsilon of 1e-5) moves them by a hundred times the noise.
    assert moved > 20 * noise
    assert torch.equal(clean, again)


DECODE_ONLY = {"position_ahead", "position_behind", "slot_early", "stale_slot"}


@pytest.mark.parametrize("name", sorted(DECODE_ONLY))
def test_defects_of_decode_leave_the_prefill(name: str) -> None:
    defect = next(d for d in catalogue(EVERYTHING, position=9) if d.name == name)
    clean, wrong = path().run([Case(), Case(defect)], SEEN)
    first = 9 if name == "stale_slot" else 7
    assert torch.equal(clean[:first], wrong[:first]) and not torch.equal(clean[first], wrong[first])


def test_a_defect_may_be_confined_to_layers_and_to_late_calls() -> None:
    defect = next(d for d in catalogue(EVERYTHING) if d.name == "gelu")
    cases = [
        Case(),
        Case(defect),
        Case(defect, frozenset([1])),
        Case(defect, None, 8),
        Case(defect, frozenset([1]), 8),
    ]
    clean, everywhere, layer, late, both = path().run(cases, SEEN)
    assert len({float(out.sum()) for out in (clean, everywhere, layer, late, both)}) == 5
    for out in (late, both):
        assert torch.equal(out[:8], clean[:8]) and not torch.equal(out[8], clean[8])
    assert cases[0].scope == "" and cases[4].scope == "only in layer 1, from position 8 on"


def test_calls_before_the_defect_are_run_once_to_the_same_effect() -> None:
    """With a case that acts at once among them nothing is shared; alone, the prefix is."""
    defect = next(d for d in catalogue(EVERYTHING) if d.name == "rope_on_v")
    shared = path().run([Case(defect, None, 9)], SEEN)[0]
    unshared = path().run([Case(defect, None, 9), Case(defect)], SEEN)[0]
    assert torch.equal(shared, unshared)


def test_layers_before_the_first_defect_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    defect = next(d for d in catalogue(EVERYTHING) if d.name == "gelu")
    cases = [Case(), *(Case(defect, frozenset([2])) for _ in range(5))]
    ran: list[int] = []
    tail = CachedPath._tail

    def counted(self: CachedPath, block: LayerBlock, layer: int, *rest: Any) -> torch.Tensor:
        ran.append(layer)
        return tail(self, block, layer, *rest)

    monkeypatch.setattr(CachedPath, "_tail", counted)
    together = path().run(cases, SEEN)
    assert [ran.count(layer) for layer in range(3)] == [1, 1, 6]
    assert torch.equal(together[1], path().run(cases[1:2], SEEN)[0])


def test_orders_use_other_layers_weights() -> None:
    (swapped,) = order_defects(EVERYTHING, (0, 2, 1))
    (twice,) = order_defects(EVERYTHING, (0, 1, 1))
    assert order_defects(EVERYTHING, (0, 1, 2)) == []
    assert (swapped.name, twice.name) == ("layers_permuted", "layer_duplicated")
    assert "layer 1 uses those of 2, 2 uses those of 1" in swapped.cause
    assert "layer 2 uses those of 1" in twice.cause
    got = path().run([Case(swapped)], SEEN)[0]
    checkpoint = gainful(EVERYTHING)
    read = checkpoint.read

    other = {"layers.1.": "layers.2.", "layers.2.": "layers.1."}

    def exchanged(name: str) -> torch.Tensor:
        return read(re.sub(r"layers\.[12]\.", lambda found: other[found.group()], name))

    checkpoint.read = exchanged  # type: ignore[method-assign]
    want = CachedPath(checkpoint, torch.float32, IDS, CALLS, SLOTS).run_clean(SEEN)
    assert torch.equal(got, want)


def test_configs_without_a_part_have_no_defect_of_it() -> None:
    plain = replace(
        EVERYTHING, qk_norm=False, qkv_bias=False, o_bias=False, mlp_bias=False, sliding_window=None, layer_types=(),
        num_key_value_heads=6, tie_word_embeddings=True,
    )  # fmt: skip
    names = {defect.name for defect in catalogue(plain)}
    assert not [n for n in names if "bias" in n or "window" in n or "qk_norm" in n or "scaling" in n or "stale" in n]
    assert not names & {"heads_tiled", "head_tied"}
    assert {"rope_on_v", "mask_missing", "softmax_half", "eps_1e-12", "layers_permuted"} <= names


def test_a_block_without_a_defect_is_itself() -> None:
    checkpoint = gainful(EVERYTHING)
    block = make_block(checkpoint, 0, torch.float32)
    assert defective(block, 0, NOTHING_WRONG, checkpoint) is block
