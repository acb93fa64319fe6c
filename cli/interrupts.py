"""Ctrl-C, a SIGTERM or a closed terminal end a command by KeyboardInterrupt, so that what is half-written is removed.

Never in the middle of an import: a C extension whose start is interrupted aborts the process, or says "initialization
failed", and a package of which a half is loaded recurses without end. There the interrupt waits for the import.
"""

from __future__ import annotations

import signal
from types import FrameType

AGAIN = 0.02  # seconds until it is looked again whether the import is done
_IMPORTS = "<frozen importlib._bootstrap>"
_arrived: list[int] = []


def listen() -> None:
    """Take the signals from here on, but for those that whoever started the program has ignored, as nohup does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    signal.signal(signal.SIGALRM, _interrupt)


def stop_listening() -> None:
    """Let the signals end the process on the spot: Python takes a while to end, and has nothing to clean up then."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def arrived() -> bool:
    """Whether one has come since `forget`: what is raised then may be what a library has made of it."""
    return bool(_arrived)


def forget() -> None:
    """Before a command begins."""
    _arrived.clear()


def _interrupt(number: int, frame: FrameType | None) -> None:
    _arrived.append(number)
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise KeyboardInterrupt
