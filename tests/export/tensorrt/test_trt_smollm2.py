"""Engines of SmolLM2-135M."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from blockexport.export.tensorrt.trt_network import make_profiles
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.precision import Precision
from tests.export.tensorrt.trt_support import TARGETS, Engine, assert_alike, build
from tests.exported import export
from tests.support import smollm2_gguf

WEIGHTS = 2 * 134_515_008  # bytes in half precision, the tied embedding once
SECONDS = 30


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Precision], Path]:
    """`smollm2(precision)`: a bundle with 2048 cache slots, exported when it is first asked for."""
    checkpoint, root = open_checkpoint(str(smollm2_gguf())), tmp_path_factory.mktemp("smollm2")

    def exported(precision: Precision) -> Path:
        export(checkpoint, root / precision.value, precision, 2048)
        return root / precision.value

    return cache(exported)


@pytest.mark.parametrize(
    "precision",
    [pytest.param(Precision.FP16, marks=pytest.mark.slow), pytest.param(Precision.BF16, marks=pytest.mark.full)],
)
def test_it_is_built_for_three_generations_within_six_percent_of_its_weights(
    precision: Precision, smollm2: Callable[[Precision], Path]
) -> None:
    """In processor time, which a busy machine does not lengthen. What is built again is alike: in float16 here, in all
    precisions in `test_stories_is_built_audited_and_built_again`."""
    bundle = smollm2(precision)

    def once() -> Engine:
        return build(bundle, TARGETS, profiles=make_profiles(8, 512))

    before = _processor_seconds()
    first = once()
    assert 1 < _processor_seconds() - before < SECONDS
    audit = first.audit
    assert (audit.attention, audit.attention_reason) == ("fused", None)
    assert (audit.cache_updates, audit.attention_layers) == (60, 30)
    assert audit.matrix_products == {precision.element.name: 7 * 30 + 1}
    weights = audit.weight_bytes[precision.element.name]
    assert abs(weights - WEIGHTS) < 4096
    assert weights < len(first.engine) < 1.06 * weights
    if precision is Precision.FP16:
        assert_alike(first, once(), bundle)


def _processor_seconds() -> float:
    """Of the processes that have ended, in one of which an engine is built."""
    times = os.times()
    return times.children_user + times.children_system
