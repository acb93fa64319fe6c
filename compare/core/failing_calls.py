"""The calls in which a check saw an artifact fail, as one row that can be walked again and looked into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from blockexport.compare.core.position_plan import calls_of

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


def prompt_and_steps(ids_S: torch.Tensor, prompt: int, what: str, within: str, steps: int = STEPS) -> FailingCalls:
    """A prompt in one call and single steps after it, as many as there are tokens for."""
    return FailingCalls(ids_S, calls_of((prompt, *(1,) * steps), len(ids_S)), what, within)
