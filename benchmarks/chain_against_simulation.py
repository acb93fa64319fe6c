"""How far `chain_simulation.py` is from what the scheduler does on this machine; more than 20 % exits with 1.

    python benchmarks/chain_against_simulation.py BUNDLE [--chain PART1 PART2 ...] [--ray] [--processor-time]

In each turn it measures what the scheduler takes over a model that computes nothing, what each stage takes for calls of
some shapes, and with `--ray` what it takes to hand bytes from actor to actor; and then tokens per second of one request
and of as many as there are rows. The simulation is given the former and held against the latter.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from chain_simulation import CHUNK, Cost, Costs, Requests, Simulation, by_points  # type: ignore[import-not-found]

from blockexport.runtime.open import open_model
from blockexport.runtime.serving.request import AnswerRequest
from blockexport.runtime.serving.scheduler import Scheduler
from blockexport.runtime.threads import use_threads

FAR = 0.20


class Measured:
    """A decoder whose costs are measured, and which then answers.

    Args:
        decoder: in this process.
        rows: of the scheduler.
        seconds: a clock.
    """

    def __init__(self, decoder: Any, rows: int, seconds: Callable[[], float]) -> None:
        self.decoder, self.rows, self.seconds = decoder, rows, seconds
        self.stages = getattr(decoder, "stages", [decoder])

    def answers(self, asked: Requests) -> float:
        """Tokens per second of the scheduler."""

        scheduler = Scheduler(self.decoder, self.rows)
        for number in range(asked.count):
            ids = tuple(3 + (7 * number + place) % 97 for place in range(asked.prompt))
            scheduler.submit(AnswerRequest(ids, max_new_tokens=asked.tokens), lambda event: None)
        began = self.seconds()
        while scheduler.turn():
            pass
        found = self.seconds() - began
        assert scheduler.metrics.new_tokens == asked.count * asked.tokens, scheduler.metrics.endings
        return float(asked.count * asked.tokens / found)

    def scheduling(self) -> tuple[float, float]:
        """Seconds of a call and of a token, of the scheduler over a model that computes nothing."""
        run, interface = self.decoder._run, self.decoder.interface

        def nothing(inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
            return torch.zeros(interface.output_shape(*position_ids_BS.shape), dtype=self.decoder.dtype)

        self.decoder._run = nothing
        try:
            one, all_ = (count * 64 / self.answers(Requests(count, 1, 64)) / 64 for count in (1, self.rows))
        finally:
            self.decoder._run = run
        token = max(0.0, (all_ - one) / (self.rows - 1))
        return max(0.0, one - token), token

    def computing(self, repeats: int) -> list[Cost]:
        """What calls of each stage take."""
        taken: list[dict[tuple[int, int], list[float]]] = [{} for _ in self.stages]
        runs = [stage._run for stage in self.stages]

        def timed(number: int, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
            began = self.seconds()
            outputs: torch.Tensor = runs[number](inputs, position_ids_BS)
            taken[number].setdefault(tuple(position_ids_BS.shape), []).append(self.seconds() - began)  # type: ignore[arg-type]
            return outputs

        self.decoder.reset(self.rows)
        shapes = [(1, CHUNK), (1, 8), *((count, 1) for count in sorted({1, 2, (self.rows + 1) // 2, self.rows}))]
        for number, stage in enumerate(self.stages):
            stage._run = partial(timed, number)
        try:
            for repeat, (count, tokens) in itertools.product(range(repeats + 1), shapes):
                self.decoder.lengths_B[:] = 0 if tokens == CHUNK else CHUNK
                self.decoder.prefill_rows(range(count), torch.full((count, tokens), 5))
                if not repeat:  # warms up
                    for one in taken:
                        one.clear()
        finally:
            for stage, run in zip(self.stages, runs, strict=True):
                stage._run = run
        means = [{shape: mean(found) for shape, found in one.items()} for one in taken]
        return [
            by_points({r: s for (r, t), s in one.items() if t == 1}, {t: s for (r, t), s in one.items() if r == 1})
            for one in means
        ]


def nothing(rows: int, tokens: int) -> float:
    """A hand-over inside a process."""
    return 0.0


def handing_over(stages: int, rows: int, width: int, repeats: int = 30) -> Cost:
    """Seconds from actor to actor on the Ray that is connected to, of `width` float32 numbers a token."""
    import ray

    class Echo:
        def run(self, passed: Any) -> Any:
            return passed.copy()

    actors = [ray.remote(Echo).options(num_cpus=0).remote() for _ in range(stages)]

    def seconds(tokens: int) -> float:
        sent, taken = np.zeros((tokens, width), np.float32), []
        for _ in range(repeats + 5):
            began, passed = time.perf_counter(), sent
            for actor in actors:
                passed = actor.run.remote(passed)
            ray.get(passed)
            taken.append((time.perf_counter() - began) / (stages + 1))
        return mean(taken[5:])  # the first ones start the actors

    by_rows, by_tokens = ({count: seconds(count) for count in (1, most)} for most in (rows, CHUNK))
    for actor in actors:
        ray.kill(actor)
    return by_points(by_rows, by_tokens)


Found = dict[str, list[tuple[float, float]]]


def hold_against(found: Found, name: str, one: Measured, costs: Costs, options: argparse.Namespace) -> None:
    """Tokens per second of one and of all rows, as they are and as they are simulated."""
    for count in (1, options.rows):
        asked = Requests(count, options.prompt, options.tokens)
        pair = one.answers(asked), Simulation(costs, options.rows).tokens_per_second(asked)
        found.setdefault(f"{name}, {count} at once", []).append(pair)


def on_ray(found: Found, options: argparse.Namespace) -> None:
    """The same with the stages in Ray's actors, each on one thread."""
    from blockexport.runtime.ray_chain import LOCAL, RayChain, connected

    folders = options.chain or [options.bundle]
    with connected(LOCAL, len(folders), 1):
        use_threads(1)
        here = Measured(open_model(folders), options.rows, time.perf_counter)
        chain = RayChain(folders, 1, last_logits_only=True)
        there = Measured(chain, options.rows, time.perf_counter)
        for _ in range(options.turns):
            call, token = here.scheduling()
            over = handing_over(len(folders), options.rows, chain.config.hidden_size)
            costs = Costs(here.computing(options.repeats), over, call, token, len(folders), options.processors)
            hold_against(found, f"{len(folders)} stages on Ray", there, costs, options)
        chain.close()


def report(found: Found) -> bool:
    """Print what was found; whether all of it is near."""
    near = True
    for name, pairs in found.items():
        off = median(simulated / real for real, simulated in pairs) - 1
        near &= abs(off) <= FAR
        print(f"{'PASS' if abs(off) <= FAR else 'FAIL'} {name}: {median(real for real, _ in pairs):.1f} tokens/s, "
              f"simulated {median(simulated for _, simulated in pairs):.1f}; by turn {off:+.1%}")  # fmt: skip
    return near


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--chain", type=Path, nargs="+")
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--processor-time", action="store_true", help="of one thread: for a machine that is busy")
    numbers = {"rows": 8, "threads": 2, "processors": 2, "prompt": 80, "tokens": 32, "turns": 3, "repeats": 3}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    seconds: Callable[[], float] = time.process_time if options.processor_time else time.perf_counter
    use_threads(1 if options.processor_time else options.threads)
    models = [[options.bundle]] + ([options.chain] if options.chain else [])
    opened = [Measured(open_model(folders), options.rows, seconds) for folders in models]
    found: Found = {}
    for _, one in itertools.product(range(options.turns), opened):
        call, token = one.scheduling()
        costs = Costs(one.computing(options.repeats), nothing, call, token, processors=1)
        hold_against(found, f"{len(one.stages)} stages" if len(one.stages) > 1 else "one file", one, costs, options)
    if options.ray:
        on_ray(found, options)
    return 0 if report(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
