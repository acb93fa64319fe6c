"""The second question to a quantised file, asked with `--cost`: what does quantising cost the model?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from blockexport.compare.audits.coded_matrix import CodedCheckpoint
from blockexport.compare.core.chapter import CHAPTER
from blockexport.compare.core.matrix_cost import kind_costs
from blockexport.compare.core.quantising_cost import NamedRun, measure_cost
from blockexport.compare.core.tokens import Encode, choose_tokens, first_ids
from blockexport.compare.judge import Judgement, JudgeOptions
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.progress import Progress, silent
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.eager import EagerDecoder

LEAST_TOKENS = 2_000  # on fewer the 99th percentile rests on a handful of positions
MOST_TOKENS = 8_192  # beyond them the figures hardly move, and the checkpoint's model is slow

APART = "what quantising costs the model is measured apart, by `compare --cost`"
"""For the notes of every judgement of a quantised file."""

BUILT_IN = "built-in chapter (Alice's Adventures in Wonderland)"
EXACT = "exact"
IN_INTEGERS = "integer activations (level 4)"
AS_SHIPPED = "integer activations (as the file says)"


@dataclass(frozen=True)
class CostQuestion:
    """What is to be measured.

    Attributes:
        ids_S: int64, the text.
        origin: of the text, for people.
        max_kl: see `QuantisingCost`.
    """

    ids_S: torch.Tensor
    origin: str
    max_kl: float | None


def cost_question(
    checkpoint: Checkpoint, decoder: Decoder, options: JudgeOptions, not_quantised: str
) -> CostQuestion | None:
    """What `options` ask for, refused before anything is run where it cannot be answered; None where nothing is asked.

    Args:
        checkpoint: the weights before they were quantised.
        decoder: the artifact, which shows what it gives.
        options: with `cost` and `max_kl`.
        not_quantised: why there is no such cost; empty where there is.

    Raises:
        UsageError: nothing is quantised, a limit that is no number of nats, or too short a text.
        NotJudgedError: the artifact gives no logits, or there is no tokenizer to read a text with.
    """
    limit = options.max_kl
    if limit is not None and not (math.isfinite(limit) and limit >= 0):
        raise UsageError(f"--max-kl {limit:g}: a limit on the mean KL is a number of nats, 0 or more")
    if not options.cost and limit is None:
        return None
    if not_quantised:
        raise UsageError(f"--cost measures what quantising costs, and {not_quantised}: leave it away")
    if not decoder.interface.ends.to_logits:
        raise NotJudgedError("--cost compares predictions of the next token, and a bundle without logits makes none")
    ids_S, origin = _text(checkpoint, options)
    return CostQuestion(ids_S, origin, limit)


def with_cost(
    judgement: Judgement,
    question: CostQuestion | None,
    judged_on: Checkpoint,
    decoder: Decoder,
    others: Callable[[], Sequence[NamedRun]] = tuple,
    progress: Progress = silent,
) -> Judgement:
    """The judgement with the answer in its report; the same where nothing was asked.

    Args:
        judgement: of the checks.
        question: see `cost_question`.
        judged_on: the checkpoint with the weights that the artifact has.
        decoder: the artifact as it was judged.
        others: opens other ways to run the same weights.
        progress: told of tensors loaded and calls done.
    """
    if question is None:
        return judgement
    assert isinstance(judged_on, CodedCheckpoint)
    runs = [NamedRun(EXACT, decoder), *others()]
    window = min(len(question.ids_S), *(run.decoder.max_sequence_length for run in runs))
    model = EagerDecoder(load_model(judged_on.original, torch.float32, window, progress=progress), window)
    cost = measure_cost(model, runs, question.ids_S, window, question.origin, question.max_kl, progress)
    names = [name for name in judged_on.entries if name in judged_on.in_codes]
    cost = replace(cost, kinds=kind_costs(judged_on, names, model, question.ids_S, progress))
    return replace(judgement, report=replace(judgement.report, quantising_cost=cost))


def _text(checkpoint: Checkpoint, options: JudgeOptions) -> tuple[torch.Tensor, str]:
    encode, ids, text = options.encode, options.token_ids, options.text
    if ids is None and encode is None:
        raise NotJudgedError(
            "--cost is measured on a text, and there is no tokenizer to read one with: give token ids with --tokens"
        )
    read = CHAPTER if text is None else text
    found = _count(encode, read) if ids is None else len(ids)
    count = min(found, MOST_TOKENS)
    chosen = choose_tokens(checkpoint.config, max(count, 1), encode=encode, text=read, ids=ids)
    origin = BUILT_IN if ids is None and text is None else chosen.origin
    if count < LEAST_TOKENS:
        raise UsageError(
            f"--cost needs {LEAST_TOKENS:,} tokens, and there are {found:,} ({origin}): give a longer text with --text"
        )
    return chosen.ids_S, origin if found <= MOST_TOKENS else f"first {MOST_TOKENS:,} tokens of the {origin}"


def _count(encode: Encode | None, text: str) -> int:
    assert encode is not None
    return len(first_ids(encode, text, MOST_TOKENS + 1))
