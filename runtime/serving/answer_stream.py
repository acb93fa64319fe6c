"""A scheduler on a thread of its own, and its answers as streams of asyncio's."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from blockexport.runtime.serving.answer_text import AnswerText
from blockexport.runtime.serving.request import AnswerRequest, End, NewToken
from blockexport.runtime.serving.scheduler import Scheduler


class AnswerStream:
    """The events of one answer. Whoever reads slowly gets several at once: there are no more than its tokens."""

    def __init__(self, scheduler: Scheduler, request: AnswerRequest, text: AnswerText | None = None) -> None:
        """Hand the request in; see `Scheduler.submit`. Inside a running loop."""
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[NewToken | End] = asyncio.Queue()
        self._ticket = scheduler.submit(request, self._tell, text)

    def _tell(self, event: NewToken | End) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody reads any more
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def next(self) -> list[NewToken | End]:
        """What has come since the last call, at least one; an `End` is the last of all."""
        events = [await self._events.get()]
        while not self._events.empty():
            events.append(self._events.get_nowait())
        return events

    def cancel(self) -> None:
        """Give it up; of an answer that has ended nothing changes."""
        self._ticket.cancel()


class SchedulerThread:
    """Runs a scheduler until it is closed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._thread = threading.Thread(target=scheduler.run, name="scheduler", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Give up what is still there, and wait for the end."""
        self._scheduler.close(cancel=True)
        self._thread.join()
