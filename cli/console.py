"""What every command says things with: results on stdout, progress and messages on stderr, JSON when asked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from blockexport.models.progress import Progress


def stdout_console() -> Console:
    """A console on stdout: results. Text is printed as it is, without markup, emoji codes or highlighting."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def stderr_console() -> Console:
    """A console on stderr: messages and progress."""
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False, highlight=False)


def say(message: str, *, quiet: bool = False) -> None:
    """One line on stderr, as it is: no wrapping, so that a path or a command can be copied."""
    if not quiet:
        print(message, file=sys.stderr, flush=True)  # noqa: T201


def print_json(value: Any) -> None:
    """One JSON document on stdout. NaN and infinity, which JSON lacks, raise ValueError: name them as text instead."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Progress]:
    """A listener that draws one bar per label on stderr; silent with `quiet` or when stderr is no terminal.

    The bars go away at the end: what stays on the terminal is the result.
    """
    from blockexport.models.progress import silent

    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield silent
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def listen(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total)
            bars.update(tasks[label], completed=done, total=total)

        yield listen
