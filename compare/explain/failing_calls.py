"""The calls in which a check saw an artifact fail, as one row that can be walked again and looked into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from blockexport.compare.checks.check_causality import LENGTH
from blockexport.compare.checks.check_chunked import CHUNKS
from blockexport.compare.checks.check_slots import slot_calls
from blockexport.compare.core.check import CheckResult
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.position_plan import calls_of

ALONG = ("prefill", "decode", "last-slot")
"""The checks on the judged sequence."""

FILE = ("parameters", "constants")
"""The checks that read what the file holds and run nothing: their message is itself a cause."""

ALONE = 20  # tokens of a row's prompt that is walked by itself
STEPS = 6


@dataclass(frozen=True)
class FailingCalls:
    """One row through an artifact.

    Attributes:
        ids_S: int64, the tokens.
        calls: the positions of each call in turn.
        what: whose calls they are, for people.
        within: what it means when everything on the walk stays within the floor although the check failed.
    """

    ids_S: torch.Tensor
    calls: Sequence[range]
    what: str
    within: str


_WITHIN = {
    "spread": "a second walk in the same calls stays within the floor: the file does not repeat itself, or fails by "
    "little and by chance",
    "chunked": "a second walk in the same chunks stays within the floor: the file does not repeat itself, or fails by "
    "little and by chance",
    "slots": "outputs and slots of the same calls on an empty cache stay within the floor: what differs is what the "
    "file does with slots that already hold something",
    "greedy": "the logits along the generated tokens stay within the floor when they are given again",
    "batch": "alone, the row's tokens stay within the floor: what is wrong is how the file treats several rows in one "
    "call (its positions, write indices or mask)",
    "invariance": "alone, the row stays within the floor: what is wrong is how the file treats rows of a batch",
    "padding": "without padding the same tokens stay within the floor: what is wrong is how the file treats a padded "
    "prompt",
    "causality": "against eager the same prompt stays within the floor: what a later token changes is smaller than "
    "that, or shows only with other tokens",
    "determinism": "against eager both runs stay within the floor: something is random, or reads memory that nobody "
    "wrote, by less than that",
}
_NOTHING = {
    "capacity": "this check is about the end of the cache, where no output can be held against eager's",
    "types": "this check reads the graph and runs nothing: the place is in its message",
    "precision": "this check runs eager PyTorch alone, and the file has no part in it",
    "parameters": "this check reads the file and runs nothing",
    "constants": "this check reads the file and runs nothing",
}


def walk_of(result: CheckResult, context: CheckContext) -> FailingCalls | None:
    """The walk on which a failed check can be explained; None where there is none, and `no_walk` says why."""
    found = _calls(result, context)
    if found is None:
        return None
    ids_S, calls, what = found
    return FailingCalls(ids_S, calls, what, _WITHIN[result.name])


def no_walk(name: str) -> str:
    """Why there is nothing to walk for a failed check."""
    return _NOTHING.get(name, "nothing is known about a place or a cause beyond its message")


def _calls(result: CheckResult, context: CheckContext) -> tuple[torch.Tensor, Sequence[range], str] | None:
    ids_S, plan = context.ids_S, context.plan
    match result.name:
        case "spread":
            return ids_S, plan.spread_calls, "single steps and chunks over the whole cache"
        case "chunked":
            return ids_S, calls_of((*CHUNKS, plan.prefill), plan.prefill), "the prompt in chunks"
        case "slots":
            return ids_S, slot_calls(len(ids_S)), "the calls whose slots are compared"
        case "greedy" if "tokens" in result.figures:
            return _generated(result.figures, ids_S)
        case "batch" if context.rows:
            row = _guilty_row(result.figures)
            if row >= len(context.rows):
                return _late_row(result.figures["rows"][row], ids_S)
            ids_S, prompt = context.rows[row].ids_S, context.rows[row].prompt
            return ids_S, calls_of((prompt, *(1,) * len(ids_S)), len(ids_S)), f"row {row} alone"
        case "invariance" | "padding":
            return ids_S, calls_of((ALONE, *(1,) * STEPS), len(ids_S)), "the row alone"
        case "causality" | "determinism":
            size = min(LENGTH, plan.prefill)
            return ids_S, calls_of((size, *(1,) * STEPS), len(ids_S)), "the prompt alone"
    return None


def _generated(figures: Mapping[str, Any], ids_S: torch.Tensor) -> tuple[torch.Tensor, Sequence[range], str]:
    prompt, tokens = figures["prompt"], figures["tokens"]
    sequence = torch.cat([ids_S[:prompt], torch.tensor(tokens[:-1], dtype=torch.int64)])
    what = f"a prompt of {prompt} tokens and the {len(tokens)} generated after it"
    return sequence, calls_of((prompt, *(1,) * len(tokens)), len(sequence)), what


def _late_row(figures: Mapping[str, Any], ids_S: torch.Tensor) -> tuple[torch.Tensor, Sequence[range], str]:
    """A row that goes on in the middle of the judged sequence, alone."""
    start, stop = figures["first_position"], figures["last_position"] + 1
    return ids_S, calls_of((start, *(1,) * (stop - start)), stop), f"the row that goes on at {start} alone"


def _guilty_row(figures: Mapping[str, Any]) -> int:
    """The row that is furthest outside its limits."""

    def share(row: Mapping[str, Any]) -> float:
        if row["not_finite"] or row["disagreements"]:
            return float("inf")
        return float(max(row["rms_ratio"] / row["rms_limit"], row["max_ratio"] / row["max_limit"]))

    shares = [share(row) for row in figures.get("rows", [])]
    return shares.index(max(shares)) if shares else 0
