"""Many answers at once from one decoder: continuous batching over the rows of its static cache, without HTTP.

The work is done in turns. A turn lends free rows to those that wait, runs at most one chunk's worth of prompts, and
then one token of every answer that has begun: however long the prompts that arrive, an answer waits for one chunk
between two of its tokens. A prompt is cut into the same chunks whatever else runs, and each answer draws from random
numbers of its own.

Where a part of the cache is lost, with the process that held it, every answer that has begun is run again without a
word to its listener: the prompt in the same chunks, its tokens one by one, so that what follows is what it would have
been.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from blockexport.models.errors import BlockexportError, CacheLostError, UsageError
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.serving.answer_text import AnswerText
from blockexport.runtime.serving.metrics import Metrics
from blockexport.runtime.serving.request import AnswerRequest, Ending, Listener
from blockexport.runtime.serving.rows import Rows
from blockexport.runtime.serving.ticket import MOST_REPLAYS, Ticket
from blockexport.runtime.text.generate import check_prompt, require_tokens_and_logits

CHUNK = 64  # tokens of prompts in one turn


class BusyError(BlockexportError):
    """As many requests wait as may wait."""


class ClosedError(BusyError):
    """The scheduler takes no more."""


class Scheduler:
    """Answers requests on `rows` rows of a decoder's cache. `turn` does the work, on one thread; `submit` and
    `Ticket.cancel` may be called from others.

    Args:
        decoder: gives logits of token ids; its cache is emptied.
        rows: answers at once. The cache has memory for so many rows of M slots, where it does not grow.
        queue_limit: requests that may wait for a row.
        chunk: tokens of prompts in one turn.
        metrics: counts and times, to add to.
        clock: seconds, which never go back.

    Raises:
        UsageError: a headless decoder, another tool's, or more rows than it takes.
        NotJudgedError: the cache would be larger than this machine's memory.
    """

    def __init__(
        self,
        decoder: Decoder,
        rows: int = 8,
        *,
        queue_limit: int = 64,
        chunk: int = CHUNK,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_tokens_and_logits(decoder, "serve")
        self.decoder = decoder
        self.metrics = metrics or Metrics()
        self._rows = Rows(decoder, rows)
        self._queue_limit, self._chunk, self._clock = queue_limit, chunk, clock
        self._queue: deque[Ticket] = deque()
        self._answering: list[Ticket] = []  # in the order in which they got their rows
        self._open = True
        self._changed = threading.Condition()

    def submit(self, request: AnswerRequest, listener: Listener, text: AnswerText | None = None) -> Ticket:
        """Hand a request in.

        Args:
            request: what to answer.
            listener: told of each token and of the end, on the thread of `turn`.
            text: makes text of its tokens and ends it at a stop string.

        Raises:
            BusyError: the queue is full, or (ClosedError) `close` was called.
            UsageError: an empty prompt, one longer than the cache, an id out of the vocabulary.
        """
        check_prompt(self.decoder, request.prompt_ids, request.max_new_tokens)
        ticket = Ticket(request, listener, text, self._clock())
        with self._changed:
            if not self._open:
                raise ClosedError("the server is shutting down and takes no more requests: try another, or later")
            # Free rows are lent with the next turn, so that those who wait for them do not count.
            waiting = len(self._queue) - (self._rows.count - self._rows.lent)
            if waiting >= self._queue_limit:
                raise BusyError(f"{self._queue_limit} requests wait already, and no more may: try again later")
            self._queue.append(ticket)
            self._changed.notify()
        return ticket

    def metrics_page(self) -> str:
        """Its counts and times as Prometheus reads them."""
        return self.metrics.page(rows=self._rows.count, answering=self.answering, waiting=self.waiting)

    @property
    def waiting(self) -> int:
        """Requests without a row."""
        return len(self._queue)

    @property
    def answering(self) -> int:
        """Requests that have one."""
        return len(self._answering)

    def close(self, *, cancel: bool = False) -> None:
        """Take no more requests; `cancel` also gives up those that there are. Turns go on until none is left."""
        with self._changed:
            self._open = False
            for ticket in (*self._queue, *self._answering) if cancel else ():
                ticket.cancel()
            self._changed.notify()

    def run(self) -> None:
        """Turns until `close` was called and every request has ended; waits while there is nothing to do."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._answering or not self._open)
                if not (self._queue or self._answering):
                    return
            self.turn()

    def turn(self) -> bool:
        """One turn; whether anything is left to do."""
        self._end_overdue()
        self._lend()
        self._prefill()
        self._decode()
        self.metrics.turns += 1
        return bool(self._queue or self._answering)

    def _end_overdue(self) -> None:
        now = self._clock()
        for ticket in [*self._queue, *self._answering]:
            why = ticket.overdue(now)
            if why is not None:
                self._end(ticket, why)

    def _lend(self) -> None:
        while self._queue and (row := self._rows.lend()) is not None:
            with self._changed:
                ticket = self._queue.popleft()
                ticket.row = row
                self._answering.append(ticket)

    def _prefill(self) -> None:
        """Prompts, first come, first served, up to a chunk's worth of tokens."""
        left = self._chunk
        for ticket in [one for one in self._answering if not one.decodes]:
            assert ticket.row is not None
            while not ticket.decodes and ticket.pending:
                ids = ticket.pending[: self._chunk]
                if len(ids) > left:
                    return
                left -= len(ids)
                outputs = self._run([ticket], partial(self._rows.append, ticket.row, torch.tensor(ids)))
                if outputs is None:
                    return
                self.metrics.prompt_tokens += len(ids)
                ticket.pending = ticket.pending[len(ids) :]
                if not ticket.pending:
                    self._choose(ticket, outputs[-1])

    def _decode(self) -> None:
        """A token of every answer that has begun."""
        tickets = {one.row: one for one in self._answering if one.decodes and one.row is not None}
        if not tickets:
            return
        inputs = {row: torch.tensor(list(one.pending)) for row, one in tickets.items()}
        outputs = self._run(list(tickets.values()), partial(self._rows.step, inputs))
        for row, ticket in tickets.items() if outputs is not None else ():
            self._choose(ticket, outputs[row])

    def _run(self, tickets: Sequence[Ticket], call: Callable[[], Any]) -> Any:
        """What a call of the decoder gives; None where it fails, which ends the answers that it was for, or has all
        begin again."""
        try:
            return call()
        except CacheLostError as error:
            self.metrics.failures += 1
            self._replay(str(error))
            return None
        except Exception as error:  # of any library: the others must go on
            self.metrics.failures += 1
            for ticket in tickets:
                self._end(ticket, Ending.FAILED, f"the model does not run: {error}", spoilt=True)
            return None

    def _replay(self, reason: str) -> None:
        times = f"and so it was {MOST_REPLAYS} times before: try again later"
        self._rows.empty()
        for ticket in list(self._answering):
            self.metrics.replays += 1
            if not ticket.replay():
                self._end(ticket, Ending.FAILED, f"{reason}, {times}")

    def _choose(self, ticket: Ticket, logits: torch.Tensor) -> None:
        logits_V: NDArray[np.float32] = logits.to(torch.float32).numpy()
        before = ticket.count
        try:
            why = ticket.choose(logits_V)
        except UsageError as error:
            self._end(ticket, Ending.FAILED, str(error), spoilt=True)
            return
        if ticket.count > before:
            now = self._clock()
            (self.metrics.next_token if before else self.metrics.first_token).add(now - ticket.told_last)
            ticket.told_last = now
        assert ticket.row is not None
        if why is None and self._rows.left(ticket.row) == 0:
            why = Ending.LENGTH
        if why is not None:
            self._end(ticket, why)

    def _end(self, ticket: Ticket, why: Ending, message: str = "", *, spoilt: bool = False) -> None:
        with self._changed:
            if ticket.row is None:
                self._queue.remove(ticket)
            else:
                self._answering.remove(ticket)
                self._rows.take_back(ticket.row, spoilt=spoilt)
        self.metrics.new_tokens += ticket.count
        self.metrics.endings[why] += 1
        ticket.end(why, message)
