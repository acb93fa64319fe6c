"""What a side's process does with it, and one interface over every way to do so."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable

from blockexport.runtime.bench.bench_plan import BenchPlan, CaseSample, Memory, Side
from blockexport.runtime.bench.meter import Meter, memory_of_this_process


class Runner(ABC):
    """A model that runs prompts, greedily. Making one imports its library and opens nothing.

    Args:
        side: what is to be run.
        plan: of the whole benchmark; its threads are those to compute with.
    """

    def __init__(self, side: Side, plan: BenchPlan) -> None:
        self.side, self.plan = side, plan

    @property
    @abstractmethod
    def version(self) -> str:
        """The library's."""

    @abstractmethod
    def load(self) -> None:
        """Open the model."""

    def memory(self) -> Memory:
        """Of the process that runs it."""
        return memory_of_this_process()

    @abstractmethod
    def run(self, prompt: list[list[int]], steps: int, meter: Meter) -> CaseSample:
        """Empty the cache, run a prompt, then `steps` tokens after its first, each the likeliest one.

        Args:
            prompt: token ids, as many lists as rows, all of one length.
            steps: decode steps.
            meter: measures the prompt and the steps, and nothing else.
        """


class SteppingRunner(Runner):
    """A model that is run call by call from here."""

    def run(self, prompt: list[list[int]], steps: int, meter: Meter) -> CaseSample:
        self.begin(prompt)

        def decode() -> None:
            for _ in range(steps):
                self.step()

        first = meter.over(self.first_token)
        rest = meter.over(decode)
        return CaseSample(first.seconds, rest.seconds, first.joules, rest.joules)

    @abstractmethod
    def begin(self, prompt: list[list[int]]) -> None:
        """Empty the cache, and put the prompt where it can be run from."""

    @abstractmethod
    def first_token(self) -> None:
        """Run the prompt, and choose the token that follows it."""

    @abstractmethod
    def step(self) -> None:
        """Run the newest token, and choose the next."""


def open_runner(side: Side, plan: BenchPlan) -> Runner:
    """The runner that a side names; only now is its library imported."""
    module, _, name = side.runner.partition(":")
    make: Callable[[Side, BenchPlan], Runner] = getattr(importlib.import_module(module), name)
    return make(side, plan)
