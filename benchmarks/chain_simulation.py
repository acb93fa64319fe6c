"""How many tokens per second `serve` gives, simulated: stages, groups of rows, chunks of prompts, hand-overs.

    python benchmarks/chain_simulation.py MODEL --device h100 --stages 1 2 4 [-M 4096] [--prompt 512] [--tokens 256]

The costs of calls are those of the roofline of `inspect --device`: the most that is possible, with nothing of what a
runtime needs beside it. `chain_against_simulation.py` takes them from a machine instead, and holds the simulation
against what the scheduler does there.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

CHUNK = 64  # as in runtime/serving/scheduler.py
FREE_MEMORY = 0.9  # of a device's: the rest is the runtime's

Cost = Callable[[int, int], float]
"""Seconds, of rows and of the tokens of each."""


@dataclass(frozen=True)
class Costs:
    """Seconds of the parts of a call.

    Attributes:
        stages: of each stage's computation.
        hand_over: of what goes to a stage, or from the last one back.
        call: of the scheduler, for a call of the decoder.
        token: of the scheduler, to choose a token.
        groups: the most groups of rows in which a call goes through the stages.
        processors: that the stages and hand-overs share; None where each stage has its own.
    """

    stages: Sequence[Cost]
    hand_over: Cost
    call: float = 0.0
    token: float = 0.0
    groups: int = 1
    processors: int | None = None


@dataclass(frozen=True)
class Requests:
    """All handed in at once: how many, their prompts' tokens, and the tokens of each answer."""

    count: int
    prompt: int
    tokens: int


class Clock:
    """Events in the order of their times, and things that one user at a time may have."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), then))

    def run(self) -> None:
        while self._events:
            self.now, _, then = heapq.heappop(self._events)
            then()


class Places:
    """So many at a time, first come, first served."""

    def __init__(self, count: int | None) -> None:
        self._free = count
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, then: Callable[[], None]) -> None:
        if self._free is None:
            then()
        elif self._free:
            self._free -= 1
            then()
        else:
            self._waiting.append(then)

    def give(self) -> None:
        if self._waiting:
            self._waiting.popleft()()
        elif self._free is not None:
            self._free += 1


class Simulation:
    """The scheduler's turns over a chain of stages.

    Args:
        costs: of everything.
        rows: answers at once.
    """

    def __init__(self, costs: Costs, rows: int) -> None:
        self.costs, self.rows = costs, rows
        self.clock = Clock()
        self.stages = [Places(1) for _ in costs.stages]
        self.processors = Places(costs.processors)
        self.busy = 0.0

    def tokens_per_second(self, asked: Requests) -> float:
        """Of all answers, from the first prompt to the last token."""
        turns = self._turns(asked)
        self._next(turns)
        self.clock.run()
        return asked.count * asked.tokens / self.clock.now

    def _turns(self, asked: Requests) -> Iterator[tuple[int, int, int]]:
        """Each call of the decoder: rows, tokens of each, tokens that are chosen afterwards."""
        waiting, free = asked.count, list(range(self.rows))
        prompts: dict[int, int] = {}  # by row, in the order in which they were lent: tokens that are still to be read
        answers: dict[int, int] = {}  # by row: tokens that are still to come
        while waiting or prompts or answers:
            while waiting and free:
                waiting -= 1
                free.remove(row := min(free))
                prompts[row] = asked.prompt
            left = CHUNK
            while prompts and (chunk := min(prompts[row := next(iter(prompts))], CHUNK)) <= left:
                left -= chunk
                prompts[row] -= chunk
                yield 1, chunk, 0 if prompts[row] else 1
                if not prompts[row]:
                    del prompts[row]
                    answers[row] = asked.tokens - 1
            free += [row for row, more in answers.items() if not more]
            answers = {row: more for row, more in answers.items() if more}
            if answers:  # rows between them that have no token to give are computed as well
                yield max(answers) - min(answers) + 1, 1, len(answers)
                free += [row for row, more in answers.items() if more == 1]
                answers = {row: more - 1 for row, more in answers.items() if more > 1}

    def _next(self, turns: Iterator[tuple[int, int, int]]) -> None:
        call = next(turns, None)
        if call is None:
            return
        rows, tokens, chosen = call
        groups = min(rows, self.costs.groups)
        sizes = [rows * (i + 1) // groups - rows * i // groups for i in range(groups)]
        coming = [groups]

        def back() -> None:
            coming[0] -= 1
            if not coming[0]:
                self.clock.after(self.costs.call + chosen * self.costs.token, partial(self._next, turns))

        for size in sizes:
            self._pass_on(0, size, tokens, back)

    def _pass_on(self, stage: int, rows: int, tokens: int, done: Callable[[], None]) -> None:
        """Hand over to a stage, or from the last one back; then let it compute."""
        last = stage == len(self.stages)
        compute = partial(self._compute, stage, rows, tokens, done)
        self._on_processor(self.costs.hand_over(rows, tokens), done if last else compute)

    def _compute(self, stage: int, rows: int, tokens: int, done: Callable[[], None]) -> None:
        seconds = self.costs.stages[stage](rows, tokens)

        def finished() -> None:
            self.busy += seconds
            self.stages[stage].give()
            self._pass_on(stage + 1, rows, tokens, done)

        self.stages[stage].take(partial(self._on_processor, seconds, finished))

    def _on_processor(self, seconds: float, then: Callable[[], None]) -> None:
        def finished() -> None:
            self.processors.give()
            then()

        self.processors.take(partial(self.clock.after, seconds, finished))


def by_points(rows: dict[int, float], tokens: dict[int, float]) -> Cost:
    """What was measured for some rows of one token, and one row of some tokens; straight lines between."""

    def cost(count: int, of: int) -> float:
        points, at = (rows, count) if of == 1 else (tokens, of)
        return float(np.interp(at, sorted(points), [points[one] for one in sorted(points)]))

    return cost


def plan(options: argparse.Namespace) -> None:
    """A table of what the roofline allows."""
    from blockexport.models.checkpoints.sources import open_config
    from blockexport.models.config import arithmetic
    from blockexport.models.devices import read_device
    from blockexport.models.model_limits import footprint_of
    from blockexport.models.precision import Precision
    from blockexport.models.roofline import step_work

    config, device = open_config(options.model), read_device(options.device)
    speed, footprint = device.speed(Precision.FP16), footprint_of(config, 2)
    weights, row = arithmetic.count_parameters(config).total * 2, arithmetic.cache_bytes(config, 2, options.slots)
    print(f"{options.model} in fp16 on {device.name}, M = {options.slots}, prompts of {options.prompt} tokens, answers "
          f"of {options.tokens}: weights {weights / 1e9:.1f} GB, a row {row / 1e9:.2f} GB")  # fmt: skip
    print("stages  rows  tokens/s  per GPU  in use   steps alone   bubble")
    for count in options.stages:
        rows = min(options.most_rows, int((device.memory * FREE_MEMORY * count - weights) // row))
        if rows < 1:
            print(f"{count:6}  does not fit")
            continue

        @cache
        def stage(rows: int, tokens: int, count: int = count) -> float:
            # A chunk computes as many products as rows of one token, and reads one row's cache.
            work = step_work(footprint, (rows, options.slots - 1), 1)
            read = footprint.weight_bytes + (work.bytes - footprint.weight_bytes)
            return max(read / speed.memory_bandwidth, tokens * work.flops / speed.matrix_peak) / count

        def network(rows: int, tokens: int, count: int = count) -> float:
            sent = rows * tokens * config.hidden_size * 2
            if count == 1:
                return 0.0  # the scheduler has the model in its own process
            return float(options.latency + sent / (options.network * 1e9))

        costs = Costs([stage] * count, network, call=options.call, token=options.token, groups=count)
        simulation = Simulation(costs, rows)
        rate = simulation.tokens_per_second(Requests(options.waves * rows, options.prompt, options.tokens))
        in_use = simulation.busy / simulation.clock.now / count
        groups = min(rows, count)
        step = (groups + count - 1) * stage(-(-rows // groups), 1) + (count + 1) * network(-(-rows // groups), 1)
        alone = rows / (step + options.call + rows * options.token)
        print(f"{count:6} {rows:5} {rate:9.0f} {rate / count:8.0f} {in_use:6.0%} {alone:13.0f} "
              f"{(count - 1) / (groups + count - 1):8.0%}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="h100")
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("-M", dest="slots", type=int, default=4096)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--most-rows", type=int, default=1 << 20)
    parser.add_argument("--waves", type=int, default=4, help="requests, in times the rows")
    parser.add_argument("--network", type=float, default=12.5, help="GB/s between two stages")
    parser.add_argument("--latency", type=float, default=1e-3, help="seconds of a hand-over")
    parser.add_argument("--call", type=float, default=0.0, help="seconds of the scheduler for a call")
    parser.add_argument("--token", type=float, default=0.0, help="seconds of the scheduler for a token")
    plan(parser.parse_args())


if __name__ == "__main__":
    main()
