"""A GGUF file in llama.cpp, through the package xllamacpp."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import xllamacpp

from blockexport.models.errors import NotJudgedError
from blockexport.runtime.bench.bench_plan import CaseSample
from blockexport.runtime.bench.meter import Meter, Reading
from blockexport.runtime.bench.runner import Runner


class LlamaRunner(Runner):
    """Runs a GGUF file on the processor.

    The times are those that llama.cpp gives itself, without what its server adds to them.
    """

    _server: Any

    @property
    def version(self) -> str:
        return f"xllamacpp {importlib.metadata.version('xllamacpp')}"

    def load(self) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(self.side.path)
        params.n_ctx = self.side.max_sequence_length or self.side.capacity
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self.plan.threads
        params.warmup = False  # every case is run once before it is measured, as for the others
        params.cache_ram_mib = 0
        params.verbosity = -1
        self._server = xllamacpp.Server(params)

    def run(self, prompt: list[list[int]], steps: int, meter: Meter) -> CaseSample:
        (ids,) = prompt
        request = {
            "prompt": ids,
            "n_predict": steps + 1,
            "samplers": ["top_k"],
            "top_k": 1,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
        }
        readings: list[Reading] = [meter.read()]
        answers: list[dict[str, Any]] = []

        def listen(answer: dict[str, Any]) -> bool:
            if len(readings) < 2:
                readings.append(meter.read())  # the first token
            answers.append(answer)
            return False

        self._server.handle_completions(request, listen)
        readings.append(meter.read())
        first_seconds, decode_seconds = self._times(answers[-1], len(ids), steps)
        start, first, end = readings
        return CaseSample(first_seconds, decode_seconds, first.since(start).joules, end.since(first).joules)

    def _times(self, answer: dict[str, Any], context: int, steps: int) -> tuple[float, float]:
        """Seconds of the prompt and of the steps. The first new token comes of the prompt: it costs no step."""
        timings = answer.get("timings")
        if timings is None or (timings["prompt_n"], timings["predicted_n"]) != (context, steps + 1):
            raise NotJudgedError(
                f"llama.cpp did not run {context} tokens and {steps} more of {self.side.path}, and answered "
                f"{str(answer)[:200]}: leave it out of --against"
            )
        return timings["prompt_ms"] / 1e3, timings["predicted_ms"] / 1e3
