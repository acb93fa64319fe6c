"""A bundle in one of our own decoders."""

from __future__ import annotations

import importlib
import importlib.metadata

import torch

from blockexport.runtime.backends import Backend, Library, backend_named
from blockexport.runtime.bench.bench_plan import BenchPlan, Side
from blockexport.runtime.bench.runner import SteppingRunner
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.open import open_decoder
from blockexport.runtime.threads import use_threads


class BundleRunner(SteppingRunner):
    """Runs a bundle with `open_decoder`. One without logits chooses no token: a headless one is given random
    embeddings, and one that gives embeddings the same token again."""

    _decoder: Decoder
    _inputs: torch.Tensor

    def __init__(self, side: Side, plan: BenchPlan) -> None:
        super().__init__(side, plan)
        assert side.backend is not None
        use_threads(plan.threads)
        self._backend = backend_named(side.backend)
        importlib.import_module(self._backend.opener.partition(":")[0])

    @property
    def version(self) -> str:
        match self._backend:
            case Backend(library=Library() as library):
                found = library.versions()
            case _:
                found = {"torch": importlib.metadata.version("torch")}
        return ", ".join(f"{name} {version}" for name, version in found.items())

    def load(self) -> None:
        side = self.side
        self._decoder = open_decoder(
            side.path,
            self._backend.name,
            max_sequence_length=side.max_sequence_length,
            model=side.opened.model,
            low_memory=side.opened.low_memory,
            exact=side.opened.exact,
            device=side.opened.device,
            threads=self.plan.threads,
        )

    def begin(self, prompt: list[list[int]]) -> None:
        decoder = self._decoder
        decoder.reset(len(prompt))
        self._inputs = torch.tensor(prompt)
        if decoder.headless:
            table = torch.randn(decoder.config.vocab_size, decoder.config.hidden_size)
            self._inputs = table[self._inputs].to(decoder.dtype)

    def first_token(self) -> None:
        self._choose(self._decoder.prefill(self._inputs))

    def step(self) -> None:
        self._choose(self._decoder.step(self._inputs))

    def _choose(self, outputs: torch.Tensor) -> None:
        last, ends = outputs[:, -1:], self._decoder.interface.ends
        if ends.pooling is not None:
            self._inputs = self._inputs[:, -1:]
        else:
            self._inputs = last if ends.headless else last.argmax(-1)
