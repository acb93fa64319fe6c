"""What quantising costs a model: its predictions on a text beside those of the checkpoint it was quantised from.

This is no check. How much a model may lose is its user's choice, so the figures are a measurement, and become a
judgement only against a limit that was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from blockexport.compare.core.figures import Figures
from blockexport.compare.core.matrix_cost import KindCost
from blockexport.models.progress import Progress, silent
from blockexport.runtime.decoder import Decoder

CHUNK = 64  # tokens a call: logits of as many positions are in memory at a time, of each of the models
PERCENTILE = 99


class NamedRun(NamedTuple):
    """A quantised model, and what tells it from others of the same weights, for people."""

    name: str
    decoder: Decoder


@dataclass(frozen=True)
class RunCost(Figures):
    """What one way of running a quantised model loses.

    Attributes:
        run: which way, for people.
        kl_mean: Kullback-Leibler divergence of its distribution of the next token from the checkpoint's, in nats, over
            all positions: the sum over tokens of p ln(p / q) with p the checkpoint's.
        kl_high: its 99th percentile over the positions, between the two nearest of them.
        perplexity: of the text: e to the mean of -ln(probability of the token that follows).
        agreement: share of the positions at which its likeliest token is the checkpoint's.
    """

    run: str
    kl_mean: float
    kl_high: float
    perplexity: float
    agreement: float


@dataclass(frozen=True)
class QuantisingCost(Figures):
    """A quantised model against its checkpoint, on the same tokens.

    Attributes:
        origin: of the text, for people.
        tokens: whose following token is predicted: all but the last one.
        window: tokens that are run with one another as context; then the cache is emptied. The first tokens of a
            window, which have little context, count as any others do.
        perplexity: the checkpoint's, in float32.
        runs: of the quantised model, as its file says first.
        kinds: of the matrices that are quantised, each alone: see `kind_costs`.
        max_kl: the limit on `kl_mean` of every run, in nats; None where none was asked for.
    """

    origin: str
    tokens: int
    window: int
    perplexity: float
    runs: tuple[RunCost, ...]
    kinds: tuple[KindCost, ...] = ()
    max_kl: float | None = None

    @property
    def too_high(self) -> tuple[RunCost, ...]:
        """The runs beyond the limit; a KL that is NaN is beyond any."""
        return () if self.max_kl is None else tuple(run for run in self.runs if not run.kl_mean <= self.max_kl)


class Predicted(NamedTuple):
    """Figures at some positions, float64 but `agrees_P`."""

    kl_P: torch.Tensor
    surprise_P: torch.Tensor  # -ln(probability of the token that follows)
    agrees_P: torch.Tensor  # bool


def measure_cost(
    checkpoint_model: Decoder,
    runs: Sequence[NamedRun],
    ids_S: torch.Tensor,
    window: int,
    origin: str,
    max_kl: float | None = None,
    progress: Progress = silent,
) -> QuantisingCost:
    """Run a text through the checkpoint's model once, and through every run beside it, a chunk at a time.

    Args:
        checkpoint_model: eager PyTorch on the weights before they were quantised.
        runs: of the quantised model; all give logits.
        ids_S: int64, the text.
        window: tokens of each window, at most the cache slots of any of the models.
        origin: of the text, for people.
        max_kl: see `QuantisingCost`.
        progress: told of the calls.
    """
    deciding = len(ids_S) - 1  # the last token has none after it
    models = [checkpoint_model, *(run.decoder for run in runs)]
    chunk = 1 if any(model.one_a_row for model in models) else CHUNK
    starts = range(0, deciding, window)
    calls = [
        range(p, min(p + chunk, start + window, deciding))
        for start in starts
        for p in range(start, min(start + window, deciding), chunk)
    ]
    surprise: list[torch.Tensor] = []
    found: list[list[Predicted]] = [[] for _ in runs]
    for done, call in enumerate(calls):
        progress("cost of quantising: call", done, len(calls))
        if call.start in starts:
            for model in models:
                model.reset(1)
        following_P = ids_S[call.start + 1 : call.stop + 1]
        given = ids_S[None, call.start : call.stop]
        log_p_PV = checkpoint_model.prefill(given)[0].double().log_softmax(-1)
        surprise.append(_surprise(log_p_PV, following_P))
        for run, parts in zip(runs, found, strict=True):
            parts.append(predicted(log_p_PV, run.decoder.prefill(given)[0].cpu(), following_P))
    progress("cost of quantising: call", len(calls), len(calls))
    return QuantisingCost(
        origin,
        deciding,
        window,
        _perplexity(torch.cat(surprise)),
        tuple(_cost(run.name, parts) for run, parts in zip(runs, found, strict=True)),
        max_kl=max_kl,
    )


def predicted(log_p_PV: torch.Tensor, logits_PV: torch.Tensor, following_P: torch.Tensor) -> Predicted:
    """What a model's logits [P, V] say beside the checkpoint's log-probabilities, float64 [P, V].

    Args:
        log_p_PV: the checkpoint's.
        logits_PV: of any floating type.
        following_P: int64, the tokens that follow in the text.
    """
    log_q_PV = logits_PV.double().log_softmax(-1)
    kl_P = (log_p_PV.exp() * (log_p_PV - log_q_PV)).sum(-1).clamp(min=0)  # rounding alone makes it less
    return Predicted(kl_P, _surprise(log_q_PV, following_P), log_p_PV.argmax(-1) == log_q_PV.argmax(-1))


def _surprise(log_p_PV: torch.Tensor, following_P: torch.Tensor) -> torch.Tensor:
    return -log_p_PV.gather(-1, following_P[:, None])[:, 0]


def _perplexity(surprise_P: torch.Tensor) -> float:
    return float(surprise_P.mean().exp())  # infinite, and no error, where it is beyond float64


def _cost(name: str, parts: Sequence[Predicted]) -> RunCost:
    kl_P, surprise_P, agrees_P = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    mean = float(kl_P.mean())
    high = float(kl_P.quantile(PERCENTILE / 100)) if math.isfinite(mean) else mean
    return RunCost(name, mean, high, _perplexity(surprise_P), float(agrees_P.double().mean()))
