"""The walk over the whole cache: every slot once, single steps everywhere, no alignment left out."""

from __future__ import annotations

import pytest

from blockexport.compare.core.position_plan import CHUNK, STEPS, make_plan


@pytest.mark.parametrize("slots", [1, 2, 5, 24, 64, 65, 100, 512, 2048, 8192, 131072])
def test_the_walk_fills_every_slot_once_and_keeps_few_positions(slots: int) -> None:
    plan = make_plan(slots)
    calls = plan.spread_calls
    assert [p for call in calls for p in call] == list(range(slots)) and max(map(len, calls)) <= CHUNK
    steps = [call.start for call in calls if len(call) == 1]
    assert set(plan.spread_steps) <= set(steps) and {0, slots - 1} <= set(plan.spread_steps)
    assert len(plan.spread_positions) <= 2 * (STEPS + 5) and set(plan.spread_positions) <= set(range(slots))
    assert max(b - a for a, b in zip(plan.spread_steps, [*plan.spread_steps[1:], slots], strict=True)) <= max(
        1, 2 * -(-slots // STEPS)
    )


@pytest.mark.parametrize("slots", [256, 512, 2048, 8192])
def test_steps_and_chunks_are_not_aligned(slots: int) -> None:
    plan = make_plan(slots)
    for unit in (2, 3, 4, 7, 8):
        assert {step % unit for step in plan.spread_steps} == set(range(unit))
    assert len({step % 16 for step in plan.spread_steps}) >= 14
    assert len({len(call) for call in plan.spread_calls}) >= 6
