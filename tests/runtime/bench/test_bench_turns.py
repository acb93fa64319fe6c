"""Turns, rounds, and what is made of their samples, with sides whose figures are made up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.roofline import Footprint, prefill_work, step_work
from blockexport.runtime.bench.bench import in_a_process, run_bench
from blockexport.runtime.bench.bench_plan import BenchCase, CaseSample, Memory, Turn, prompt_ids
from blockexport.runtime.bench.meter import Meter
from blockexport.runtime.bench.runner import SteppingRunner
from blockexport.runtime.bench.turn import SideRequest, take_turn
from tests.runtime.bench.made_up_sides import PLAN, SPEED, MadeUp, made_up_side
from tests.small_models import small_config


class FakeClock:
    """Seconds that pass only where a fake runner says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now


class FakeRunner(SteppingRunner):
    """Loading takes 100 s, emptying the cache 1000, a token of a prompt 1, a step 10 and 1 for each row."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(made_up_side("fake"), PLAN)
        self.clock, self.log = clock, [""]

    @property
    def version(self) -> str:
        return "fake 3"

    def load(self) -> None:
        self.clock.now += 100

    def begin(self, prompt: list[list[int]]) -> None:
        self.clock.now += 1000
        self.prompt = prompt
        self.log.append("")

    def first_token(self) -> None:
        self.clock.now += len(self.prompt) * len(self.prompt[0])
        self.log[-1] += f"{len(self.prompt)}x{len(self.prompt[0])}"

    def step(self) -> None:
        self.clock.now += 10 + len(self.prompt)
        self.log[-1] += "."


def test_a_turn_times_the_prompt_and_the_steps_and_nothing_else() -> None:
    clock, memory = FakeClock(), iter([Memory(5, 4, 6), Memory(70, 60, 80)])
    told: list[float] = []
    runner = FakeRunner(clock)
    turn = take_turn(
        runner,
        SideRequest(runner.side, PLAN, 97),
        lambda: told.append(clock.now),
        Meter(clock.read, lambda: clock.now / 2),
        lambda: next(memory),
    )
    assert (turn.version, turn.load_seconds) == ("fake 3", 100)
    assert turn.samples == (CaseSample(7, 44, 3.5, 22), CaseSample(33, 52, 16.5, 26))
    # Each case runs once to warm up, with two steps, before it is timed.
    assert runner.log[1:] == ["1x7..", "1x7....", "3x11..", "3x11...."]
    assert (turn.before, turn.after) == (Memory(5, 4, 6), Memory(70, 60, 80))
    assert len(told) == 1 + len(PLAN.cases)


def test_prompts_are_the_same_for_all_and_differ_by_row() -> None:
    ids = prompt_ids(BenchCase(3, 50), 97)
    assert [len(row) for row in ids] == [50] * 3 and all(0 <= token < 97 for row in ids for token in row)
    assert len(set(ids[0])) > 40 and ids[0] != ids[1] != ids[2]
    assert ids == prompt_ids(BenchCase(3, 50), 97)


def test_sides_take_turns_and_the_machine_too() -> None:
    made_up = MadeUp({"a": 1.0, "b": 2.0})
    steps: list[tuple[int, int]] = []
    sides = [made_up_side("a"), made_up_side("b")]
    run_bench(sides, PLAN, "", lambda label, done, total: steps.append((done, total)), made_up)
    assert made_up.asked == ["a", "b", "cpu"] * 5
    assert steps == [(i, 35) for i in range(36)]  # of each side loading and two cases, and the machine


def test_medians_spreads_and_shares() -> None:
    """Side a takes 1 to 5 units, side b three times as long, rounds being slower and slower."""
    result = run_bench([made_up_side("a"), made_up_side("b")], PLAN, "A Processor", ask=MadeUp({"a": 1e-3, "b": 3e-3}))
    a, b = result.sides
    small, large = a.cases
    assert small.prefill.seconds.samples == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3, 5e-3])
    assert (small.prefill.seconds.median, small.prefill.seconds.lowest, small.prefill.seconds.highest) == pytest.approx(
        (3e-3, 1e-3, 5e-3)
    )
    assert small.decode.seconds.median == pytest.approx(10 * 3e-3 / 4)  # of each of four steps
    assert small.prefill.tokens_per_second == pytest.approx(7 / 3e-3)
    assert large.prefill.tokens_per_second == pytest.approx(3 * 11 / 9e-3)
    assert large.decode.tokens_per_second == pytest.approx(3 / (10 * 9e-3 / 4))
    assert small.decode.joules_per_token == pytest.approx(6 * 3e-3 / 4)
    assert large.decode.joules_per_token == pytest.approx(6 * 3e-3 / 4 / 3)
    assert (a.before, a.after) == (Memory(3_000, None, None), Memory(9_000, 6_000, 12_000))
    assert b.after == Memory(27_000, 18_000, 36_000)
    assert (small.decode.times_first, b.cases[1].prefill.times_first) == pytest.approx((1, 3))
    # The best of the machine's measurements counts: every other one was slower.
    assert result.speeds == {"cpu": SPEED}
    footprint = Footprint(small_config(), 1_000_003, 4)
    assert small.decode.share == pytest.approx(step_work(footprint, PLAN.cases[0], 4).seconds(SPEED) / 30e-3)
    assert large.prefill.share == pytest.approx(prefill_work(footprint, PLAN.cases[1]).seconds(SPEED) / 9e-3)


def test_ratios_are_of_pairs() -> None:
    """Rounds of 1, 2, 3, 4, 5 against constant ones: the median of the ratios, and not the ratio of the medians."""

    class Steady(MadeUp):
        def __call__(self, request: Any, told: Any) -> Any:
            turn = super().__call__(request, told)
            if isinstance(turn, Turn) and request.side.name == "steady":
                turn = replace(turn, samples=(CaseSample(2.0, 2.0), CaseSample(2.0, 2.0)))
            return turn

    result = run_bench(
        [made_up_side("a"), made_up_side("steady")], replace(PLAN, rounds=4), "", ask=Steady({"a": 1.0, "steady": 1.0})
    )
    # 2/1, 2/2, 2/3, 2/4
    assert result.sides[1].cases[0].prefill.times_first == pytest.approx((1 + 2 / 3) / 2)
    assert result.sides[1].cases[0].decode.joules_per_token is None


def test_a_result_is_json_with_every_sample() -> None:
    side = made_up_side("a", footprint=None, notes=("said",))
    result = run_bench([side], PLAN, "A Processor", ask=MadeUp({"a": 1.0}))
    found = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert (found["rounds"], found["steps"], found["threads"], found["processor"]) == (5, 4, 2, "A Processor")
    assert found["machine"] == [
        {"device": "cpu", "memory_bandwidth": 2e9, "matrix_peak": 5e9, "matrix_type": "float32"}
    ]
    (told,) = found["sides"]
    assert (told["version"], told["notes"], told["load_seconds"]["median"]) == ("a 1.2", ["said"], 300.0)
    case = told["cases"][1]
    assert (case["batch_size"], case["context"]) == (3, 11)
    assert case["prefill"]["seconds"]["samples"] == [3.0, 6.0, 9.0, 12.0, 15.0]
    assert case["decode"]["share_of_roofline"] is None


RUNNERS = """
import os
from blockexport.models.errors import UsageError

def dies(side, plan):
    os.kill(os.getpid(), 9)

def breaks(side, plan):
    print("last words", flush=True)
    os._exit(3)

def refuses(side, plan):
    raise UsageError(f"{side.name}: OMP_WAIT_POLICY is {os.environ.get('OMP_WAIT_POLICY')}")
"""


@pytest.mark.parametrize(
    ("runner", "backend", "error", "said"),
    [
        ("dies", None, NotJudgedError, "^x ended in the middle of its turn .*memory ran out"),
        ("breaks", None, NotJudgedError, r"ended in the middle of its turn \(exit status 3: last words\)"),
        ("refuses", None, UsageError, "^x: OMP_WAIT_POLICY is None"),
        ("refuses", "onnxruntime", UsageError, "^x: OMP_WAIT_POLICY is PASSIVE"),
    ],
)
def test_what_goes_wrong_in_a_process_is_told(
    runner: str,
    backend: str | None,
    error: type[Exception],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "made_up_runners.py").write_text(RUNNERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    side = made_up_side("x", runner=f"made_up_runners:{runner}", backend=backend)
    with pytest.raises(error, match=said):
        in_a_process(SideRequest(side, PLAN, 97), lambda: None)
