"""A folder with a config.json in Hugging Face's transformers, with a static cache; compiled on a GPU."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from blockexport.models.element_types import BY_NAME
from blockexport.runtime.bench.bench_plan import BenchPlan, Side
from blockexport.runtime.bench.runner import SteppingRunner
from blockexport.runtime.threads import use_threads


class TransformersRunner(SteppingRunner):
    """Runs a model's own class. On a GPU the steps are compiled into CUDA graphs, as its guide to speed does it; on a
    processor they are run as they are."""

    _model: Any
    _cache: Any = None
    _rows = 0

    def __init__(self, side: Side, plan: BenchPlan) -> None:
        super().__init__(side, plan)
        use_threads(plan.threads)

    @property
    def version(self) -> str:
        return f"transformers {transformers.__version__}"

    def load(self) -> None:
        dtype = BY_NAME[self.side.element].torch_dtype
        kind: Any = transformers.AutoModelForCausalLM
        self._model = kind.from_pretrained(self.side.path, dtype=dtype, local_files_only=True).to(self.side.device)
        self._forward = self._model.forward
        if self.side.device != "cpu":
            self._forward = torch.compile(self._model.forward, mode="reduce-overhead", fullgraph=True)

    @torch.inference_mode()
    def begin(self, prompt: list[list[int]]) -> None:
        self._ids = torch.tensor(prompt, device=self.side.device)
        slots = self.side.max_sequence_length or self.side.capacity
        if self._cache is None or self._rows != len(prompt):
            self._rows = len(prompt)  # a cache of its own for each, whose addresses a CUDA graph keeps
            self._cache = transformers.StaticCache(self._model.config, max_cache_len=slots)
        else:
            self._cache.reset()
        self._place = torch.arange(self._ids.shape[1], device=self.side.device)

    def first_token(self) -> None:
        self._choose(self._model.forward)

    def step(self) -> None:
        self._choose(self._forward)

    @torch.inference_mode()
    def _choose(self, forward: Any) -> None:
        given = forward(self._ids, cache=self._cache, position_ids=self._place[None], use_cache=True, logits_to_keep=1)
        self._ids = given.logits[:, -1:].argmax(-1)
        self._place = self._place[-1:] + 1
        self._ids[0, 0].item()  # as the others, which look at each token: until it is there
