"""An answer on its way: what is chosen of it, and what of that has still to go into the cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blockexport.runtime.serving.answer_text import AnswerText
from blockexport.runtime.serving.request import AnswerRequest, End, Ending, Listener, Logprobs, NewToken
from blockexport.runtime.text.sampling import Sampler, ordered_candidates

MOST_REPLAYS = 3  # of one answer


class Ticket:
    """A request that was handed in; `cancel` is all that is for callers."""

    def __init__(self, request: AnswerRequest, listener: Listener, text: AnswerText | None, now: float) -> None:
        self.request = request
        self.cancelled = False
        self.row: int | None = None
        self._listener = listener
        self._text = text
        self._sampler = Sampler(request.sampling)
        self._stop_ids = frozenset(request.stop_ids)
        self.pending: Sequence[int] = request.prompt_ids  # chosen, and not yet in the cache
        self.decodes = False  # its prompt is in the cache
        self.chosen: list[int] = []
        self._again: deque[int] = deque()  # of those, what has to be run once more
        self._replays = 0
        self.handed_in = self.told_last = now  # told last: when a token was, or the request came in

    def cancel(self) -> None:
        """Give it up: its row is free with the next turn. From any thread, at any time."""
        self.cancelled = True

    @property
    def count(self) -> int:
        """Tokens that were told."""
        return len(self.chosen)

    def replay(self) -> bool:
        """Begin with an empty row again; whether it still may."""
        self._replays += 1
        self.pending, self._again, self.decodes = self.request.prompt_ids, deque(self.chosen), False
        return self._replays <= MOST_REPLAYS

    def overdue(self, now: float) -> Ending | None:
        """Why it ends whatever it has come to."""
        if self.cancelled:
            return Ending.CANCELLED
        seconds = self.request.seconds
        return Ending.TIMED_OUT if seconds is not None and now - self.handed_in > seconds else None

    def choose(self, logits_V: NDArray[np.float32]) -> Ending | None:
        """Choose and tell the next token; why the answer ends with it, if it does.

        Raises:
            UsageError: the logits are NaN or infinite.
        """
        self.decodes = True
        if self._again:
            self.pending = (self._again.popleft(),)
            return None
        token_id = self._sampler.sample(logits_V)
        if token_id in self._stop_ids:
            return Ending.STOP
        self.chosen.append(token_id)
        self.pending = (token_id,)
        text = "" if self._text is None else self._text.push(token_id)
        self._listener(NewToken(token_id, text, _logprobs(logits_V, token_id, self.request.top_logprobs)))
        if self._text is not None and self._text.stopped:
            return Ending.STOP
        return Ending.LENGTH if self.count == self.request.max_new_tokens else None

    def end(self, why: Ending, message: str = "") -> None:
        """Tell the end."""
        rest = "" if self._text is None else self._text.flush()
        if self._text is not None and self._text.stopped and why is Ending.LENGTH:
            why = Ending.STOP  # what the last token left of a character was the end of a stop string
        self._listener(End(why, self.count, rest, message))


def _logprobs(logits_V: NDArray[np.float32], token_id: int, top: int | None) -> Logprobs | None:
    if top is None:
        return None
    wide = logits_V.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    likeliest = ordered_candidates(logits_V, top).tolist() if top else []
    return Logprobs(float(wide[token_id]), tuple((i, float(wide[i])) for i in likeliest))
