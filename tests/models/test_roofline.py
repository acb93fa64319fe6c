"""The bytes and operations of the roofline, against sums by hand and against `blockexport inspect`'s counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.model_cost import inspect_model
from blockexport.models.roofline import Footprint, MachineSpeed, Work, prefill_work, step_work
from blockexport.models.strict_json import read_record
from blockexport.runtime.bench.bench_plan import BenchCase
from tests.exported import EVERYTHING
from tests.small_models import small_config

V, D, F, N, K, H, L = 97, 48, 80, 6, 2, 10, 3
ATTENTION = 2 * D * N * H + 2 * D * K * H  # q and o, k and v
BLOCK = ATTENTION + 3 * D * F + 2 * D
MATRICES = L * BLOCK + D  # all but the head


def test_a_step_by_hand() -> None:
    """Two rows, two steps after 5 tokens: they see 6 slots, then 7."""
    work = step_work(Footprint(small_config(), weight_bytes=12_345, cache_itemsize=2), BenchCase(2, 5), steps=2)
    slots = 6 + 7
    assert work.bytes == 2 * 12_345 + 2 * (2 * L * K * H * 2) * slots
    assert work.flops == 2 * (2 * 2 * (MATRICES + V * D) + 4 * L * N * H * slots)


def test_a_prompt_by_hand() -> None:
    """Weights are read once, keys and values written once, and one row of logits computed, however long it is."""
    work = prefill_work(Footprint(small_config(), weight_bytes=12_345, cache_itemsize=4), BenchCase(3, 5))
    assert work.bytes == 12_345 + 3 * 5 * (2 * L * K * H * 4)
    assert work.flops == 3 * (5 * 2 * MATRICES + 2 * V * D + 4 * L * N * H * (1 + 2 + 3 + 4 + 5))


def test_what_gives_no_logits_needs_no_head() -> None:
    with_head = Footprint(small_config(), 12_345, 4)
    without, case = replace(with_head, gives_logits=False), BenchCase(3, 5)
    assert prefill_work(with_head, case).flops - prefill_work(without, case).flops == 3 * 2 * V * D
    assert step_work(with_head, case, 2).flops - step_work(without, case, 2).flops == 2 * 3 * 2 * V * D


@pytest.mark.parametrize("context", [3, 7, 20])
def test_a_window_bounds_what_is_seen_and_not_what_is_written(context: int) -> None:
    """One of three layers sees 7 slots at most."""
    case, seen = BenchCase(1, context), [min(t, 7) for t in range(1, context + 2)]
    footprint = Footprint(EVERYTHING, weight_bytes=0, cache_itemsize=4)
    per_slot = 2 * 2 * 10 * 4
    assert step_work(footprint, case, 1).bytes == per_slot * (2 * (context + 1) + seen[context])
    assert prefill_work(footprint, case).bytes == per_slot * 3 * context
    full = replace(EVERYTHING, layer_types=(), sliding_window=None)
    less = sum(t - s for t, s in zip(range(1, context + 1), seen, strict=False))
    without = prefill_work(Footprint(full, 0, 4), case).flops
    assert prefill_work(footprint, case).flops == without - 4 * 6 * 10 * less


def test_a_step_is_what_inspect_counts_for_a_token() -> None:
    counted = inspect_model("tiny", tokens=9, precision="fp32")
    config = read_record(ModelConfig, counted["config"], "config")
    work = step_work(Footprint(config, counted["weight_bytes"], 4), BenchCase(1, 8), 1)
    assert work.flops == counted["flops_per_token"]["weights"] + counted["flops_per_token"]["attention"]
    assert work.bytes == counted["weight_bytes"] + counted["cache_bytes"]["per_sequence"]


def test_the_slower_of_memory_and_arithmetic_decides() -> None:
    speed = MachineSpeed("cpu", 100.0, 1000.0, "float32")
    assert Work(200, 1000).seconds(speed) == 2.0
    assert Work(200, 5000).seconds(speed) == 5.0
