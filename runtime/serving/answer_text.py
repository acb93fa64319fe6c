"""The text of an answer as it comes, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from blockexport.runtime.text.detokenize import StreamDecoder


class AnswerText:
    """Turns tokens into text and looks for strings that end it; none of a stop string is ever given.

    Attributes:
        stopped: whether one was found: what follows it is dropped.
    """

    def __init__(self, stream: StreamDecoder, stops: Sequence[str] = ()) -> None:
        """`stops` are not empty, none of them."""
        self._stream = stream
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """The text that has become certain with this token: what a stop string may begin with is held back."""
        return self._certain(self._stream.push(token_id))

    def flush(self) -> str:
        """What is left at the end."""
        certain = self._certain(self._stream.flush())
        rest = "" if self.stopped else self._held
        self._held = ""
        return certain + rest

    def _certain(self, piece: str) -> str:
        if self.stopped:
            return ""
        text = self._held + piece
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the beginning of `stop`."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
