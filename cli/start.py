"""The installed program from its first instruction on.

Importing the commands takes a tenth of a second, in which Ctrl-C would print a traceback, and a descriptor that the
caller has closed would be given to the first file that is opened: what a library prints would go into that file.
"""

from __future__ import annotations

# What Python has loaded by now: to import anything else, `signal` included, takes as long as it takes to press Ctrl-C.
import _signal  # type: ignore[import-not-found]
import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from blockexport.models.exit_codes import ExitCode


def run() -> ExitCode:
    """Run the command line; returns the exit code."""
    # A shell has Ctrl-C ignored for what it starts in the background, and so it stays.
    listens = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if listens:
        _signal.signal(_signal.SIGINT, _leave)
    open_standard_streams()
    from blockexport.cli.main import run as run_command_line
    from blockexport.models.exit_codes import ExitCode

    try:
        if listens:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        return run_command_line()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def open_standard_streams() -> None:
    """Give descriptors 0 to 2 the null device where the caller has closed them; let stdout replace the characters that
    its encoding lacks."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")


def _leave(number: int, frame: object) -> None:
    """Nothing is half-written yet, so the process may end on the spot, with the code of an interrupted one."""
    os.write(2, b"interrupted\n")
    os._exit(128 + number)
