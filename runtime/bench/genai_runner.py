"""A folder of onnxruntime-genai's in onnxruntime-genai."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnxruntime_genai as genai

from blockexport.runtime.bench.bench_plan import BenchPlan, Side
from blockexport.runtime.bench.runner import SteppingRunner


class GenaiRunner(SteppingRunner):
    """Runs a folder with a `genai_config.json` with as many threads as the others; all else is as the folder says."""

    _model: Any
    _generator: Any

    def __init__(self, side: Side, plan: BenchPlan) -> None:
        super().__init__(side, plan)
        self._generator = None

    @property
    def version(self) -> str:
        return f"onnxruntime-genai {genai.__version__}"

    def load(self) -> None:
        config = genai.Config(str(self.side.path))
        session = {"intra_op_num_threads": self.plan.threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self._model = genai.Model(config)

    def begin(self, prompt: list[list[int]]) -> None:
        self._generator = None  # before there is a second cache
        slots = self.side.max_sequence_length or self.side.capacity
        parameters = genai.GeneratorParams(self._model)
        # With a least length the end-of-text token does not end it before its steps are done.
        parameters.set_search_options(max_length=slots, min_length=slots, batch_size=len(prompt), do_sample=False)
        self._generator = genai.Generator(self._model, parameters)
        self._prompt = np.array(prompt, dtype=np.int32)

    def first_token(self) -> None:
        self._generator.append_tokens(self._prompt)  # runs the prompt
        self._generator.generate_next_token()  # only chooses, this first time

    def step(self) -> None:
        self._generator.generate_next_token()
