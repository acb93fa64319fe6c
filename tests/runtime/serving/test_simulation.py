"""The simulation that plans deployments: against times that were added up by hand, and the scheduler's own turns."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from blockexport.runtime.open import open_decoder
from blockexport.runtime.serving.request import AnswerRequest
from blockexport.runtime.serving.scheduler import CHUNK, Scheduler


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "chain_simulation.py"
    spec = importlib.util.spec_from_file_location("chain_simulation", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def nothing(rows: int, tokens: int) -> float:
    return 0.0


def a_second(rows: int, tokens: int) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("costs", "seconds"),
    [
        # Two prompts in one turn go through three stages one after the other, then two steps of both rows.
        ({}, 2 * 3 + 2 * 3),
        # In two groups a step takes (groups + stages - 1) calls of a stage instead.
        ({"groups": 2}, 2 * 3 + 2 * 4),
        ({"groups": 2, "processors": 1}, 2 * 3 + 2 * 6),
        ({"hand_over": a_second}, 2 * 7 + 2 * 7),
        ({"call": 0.5, "token": 0.25}, 2 * (3 + 0.75) + 2 * (3 + 1)),
    ],
)
def test_times_are_those_added_up_by_hand(simulation: ModuleType, costs: dict[str, object], seconds: float) -> None:
    chain = simulation.Costs([a_second] * 3, **{"hand_over": nothing, **costs})
    rate = simulation.Simulation(chain, rows=4).tokens_per_second(simulation.Requests(2, prompt=5, tokens=3))
    assert rate == pytest.approx(2 * 3 / seconds)


def test_turns_are_the_scheduler_s(
    simulation: ModuleType, judged_stories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = open_decoder(judged_stories, threads=1)
    calls: list[tuple[int, int]] = []
    run = decoder.prefill_rows

    def seen(rows: range, inputs: torch.Tensor) -> torch.Tensor:
        calls.append((len(rows), inputs.shape[1]))
        return run(rows, inputs)

    monkeypatch.setattr(decoder, "prefill_rows", seen)
    scheduler = Scheduler(decoder, 3)
    for number in range(5):
        scheduler.submit(AnswerRequest(tuple(range(3 + number, 93 + number)), max_new_tokens=4), lambda event: None)
    while scheduler.turn():
        pass
    turns = simulation.Simulation(simulation.Costs([nothing], nothing), 3)._turns(simulation.Requests(5, 90, 4))
    assert calls == [(rows, tokens) for rows, tokens, _ in turns]
    assert simulation.CHUNK == CHUNK
