"""How a command ends: it returns one of these codes, or raises an error that carries one (`models/errors.py`)."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """Each code with what it means, in the words of the documentation's table."""

    meaning: str

    def __new__(cls, number: int, meaning: str = "") -> Self:
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning = meaning
        return code

    GOOD = 0, "good"
    BAD = 1, "judged and found bad; the message or the report says what. Of `diff`: something differs"
    WRONG_USE = 2, "wrong use or bad input; one message with the value, the limit and the remedy"
    NOT_JUDGED = 3, "could not be done or judged on this machine: no kernel, no source, no GPU, not enough memory"
    BUG = 70, "a bug of blockexport; `BLOCKEXPORT_DEBUG=1` in the environment prints the traceback for a report"
    INTERRUPTED = 130, "interrupted"
    READER_LEFT = 141, "the reading end of a pipe closed"
