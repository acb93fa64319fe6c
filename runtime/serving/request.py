"""What is asked of the scheduler, and what it tells of it as it goes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum

from blockexport.runtime.text.sampling import SamplingOptions


@dataclass(frozen=True)
class AnswerRequest:
    """A prompt to go on from.

    Attributes:
        prompt_ids: 1 .. M tokens.
        sampling: how tokens are chosen; the same seed chooses the same, whatever else runs.
        stop_ids: tokens that end the answer and are not part of it.
        max_new_tokens: the most tokens to give; None goes on to the last cache slot.
        top_logprobs: of how many of the likeliest tokens to tell the logarithm of the probability, beside that of the
            chosen one; None tells nothing.
        seconds: after which it is given up, from the moment it was handed in; None waits as long as it takes.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    stop_ids: Collection[int] = ()
    max_new_tokens: int | None = None
    top_logprobs: int | None = None
    seconds: float | None = None


class Ending(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"
    FAILED = "failed"


@dataclass(frozen=True)
class Logprobs:
    """Natural logarithms of probabilities at temperature 1: of the chosen token, and of the likeliest by their ids."""

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class NewToken:
    """A token of an answer; `text` is what has become certain with it, and may be empty."""

    token_id: int
    text: str = ""
    logprobs: Logprobs | None = None


@dataclass(frozen=True)
class End:
    """The end of an answer: always told, once, and last.

    Attributes:
        why: the reason.
        new_tokens: how many there were.
        text: what was held back: the beginning of a stop string, or of a character.
        message: what went wrong, where something has.
    """

    why: Ending
    new_tokens: int
    text: str = ""
    message: str = ""


Listener = Callable[[NewToken | End], None]
"""Told each token and then the end, on the thread that runs the scheduler; it must not wait."""
