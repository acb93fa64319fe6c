"""What a server counts and times, in the text form that Prometheus reads.

Source of the form: "Exposition formats", version 0.0.4, in Prometheus' documentation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds


class Histogram:
    """How many times there were up to each of `BOUNDS`, and their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def lines(self, name: str) -> Iterator[str]:
        """The samples of the metric `name`."""
        total = 0
        for bound, count in zip((*BOUNDS, "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum}"
        yield f"{name}_count {total}"


class Metrics:
    """Counts and times since the start. Written by the scheduler's thread, and `responses` by the server's.

    Attributes:
        first_token: seconds from the request to its first token; `next_token`: between two tokens of an answer.
        endings: answers by the reason of their end.
        responses: HTTP responses by their status.
    """

    def __init__(self) -> None:
        self.turns = self.prompt_tokens = self.new_tokens = self.failures = self.replays = 0
        self.first_token, self.next_token = Histogram(), Histogram()
        self.endings: Counter[str] = Counter()
        self.responses: Counter[int] = Counter()

    def page(self, *, rows: int, answering: int, waiting: int) -> str:
        """All of it, with how many rows there are, how many requests have one, and how many wait."""
        return "".join(f"{line}\n" for line in self._lines(rows, answering, waiting))

    def _lines(self, rows: int, answering: int, waiting: int) -> Iterator[str]:
        numbers = (
            ("rows", "gauge", "Rows of the cache: answers at once.", rows),
            ("requests_answering", "gauge", "Requests that have a row.", answering),
            ("requests_waiting", "gauge", "Requests that wait for a row.", waiting),
            ("turns_total", "counter", "Turns of the scheduler.", self.turns),
            ("prompt_tokens_total", "counter", "Tokens of prompts that were run.", self.prompt_tokens),
            ("new_tokens_total", "counter", "Tokens of answers that have ended.", self.new_tokens),
            ("failed_calls_total", "counter", "Calls of the model that failed.", self.failures),
            (
                "replays_total",
                "counter",
                "Answers run again, since a part of the cache was lost.",
                self.replays,
            ),
        )
        for name, kind, help, value in numbers:
            yield from _head(name, kind, help)
            yield f"blockexport_{name} {value}"
        labelled = (
            ("answers_total", "Answers by the reason of their end.", "ending", self.endings),
            ("http_responses_total", "HTTP responses by status.", "status", self.responses),
        )
        for name, help, label, counts in labelled:
            yield from _head(name, "counter", help)
            yield from (f'blockexport_{name}{{{label}="{key}"}} {count}' for key, count in sorted(counts.items()))
        times = (
            ("first_token_seconds", "From a request to its first token.", self.first_token),
            ("next_token_seconds", "Between two tokens of an answer.", self.next_token),
        )
        for name, help, histogram in times:
            yield from _head(name, "histogram", help)
            yield from histogram.lines(f"blockexport_{name}")


def _head(name: str, kind: str, help: str) -> Iterator[str]:
    yield f"# HELP blockexport_{name} {help}"
    yield f"# TYPE blockexport_{name} {kind}"
