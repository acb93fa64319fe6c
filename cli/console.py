"""What every command says things with: results on stdout, progress and messages on stderr, JSON when asked."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from blockexport.models.wording import harmless

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from blockexport.models.progress import Progress


PLAIN_EVERY = 5.0  # seconds between two lines of progress where no bar can be drawn


def stdout_console() -> Console:
    """A console on stdout: results. Text is printed as it is but `harmless`, without markup, emoji codes or
    highlighting."""
    return _console(stderr=False)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console
    from rich.text import Text

    class Harmless(Console):
        def render_str(self, text: str, **style: Any) -> Text:
            return super().render_str(harmless(text), **style)

    # Rich takes NO_COLOR to the letter and goes on with bold and dim: here it means plain text.
    colors: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Harmless(stderr=stderr, markup=False, emoji=False, highlight=False, color_system=colors)


def say(message: str, *, quiet: bool = False) -> None:
    """One line on stderr, as it is but `harmless`: no wrapping, so that a path or a command can be copied."""
    if not quiet and sys.stderr is not None:
        with suppress(OSError):  # nobody listens: the work and its exit code stand
            print(harmless(message), file=sys.stderr, flush=True)  # noqa: T201


def print_json(value: Any) -> None:
    """One JSON document on stdout, its characters escaped where the terminal lacks them. NaN and infinity, which JSON
    lacks, raise ValueError: name them as text instead."""
    text = harmless(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))  # in JSON that means the same
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a path that is not UTF-8 has such characters too
        text = json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def give_up_broken_streams() -> None:
    """Send what stdout and stderr still hold to the null device where their readers are gone or their disks full:
    Python's own flush at the end would complain about it once more, with an exit code of its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Progress]:
    """A listener that draws one bar per label on stderr, or prints a plain line now and then where stderr is no
    terminal; silent with `quiet`.

    The bars go away at the end: what stays on the terminal is the result.
    """
    from blockexport.models.progress import silent

    if quiet or sys.stderr is None:  # closed by whoever started the program
        yield silent
        return
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield _PlainLines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def listen(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total)
            bars.update(tasks[label], completed=done, total=total)

        yield listen


class _PlainLines:
    """A line every few seconds, so that work that is done soon says nothing."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, label: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= PLAIN_EVERY:
            self._last = now
            say(f"{label} {done} of {total}")
