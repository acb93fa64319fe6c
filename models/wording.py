"""Words of messages that many modules need: counts, numbers, lists of names, and a hint at the name that was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_ALL_DIGITS = 17  # enough to tell any two numbers of float64 apart
# What moves a terminal's cursor, paints over lines or turns text around: names in strangers' files may hold it.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LINE_BREAKS = re.compile("[\n\u2028\u2029]")


def harmless(text: str) -> str:
    """Text for a terminal: characters that would steer it are shown by their numbers, as \\u001b."""
    return _STEERING.sub(_by_number, text)


def one_line(text: str) -> str:
    """`harmless`, and line breaks shown by their numbers too: a name with one could pass for the next line."""
    return _LINE_BREAKS.sub(_by_number, harmless(text))


def _by_number(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def plural(count: int, noun: str, space: str = " ") -> str:
    """1 step, 16 steps."""
    return f"{count:,}{space}{noun}{'' if count == 1 else 's'}"


def number(value: float, digits: int = 2) -> str:
    """A measured number, short: 0.085, 1.4e-7, 5.1e4."""
    mantissa, e, exponent = f"{value:.{digits}g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


def size(count: float) -> str:
    """Bytes in the unit that suits them, to two digits after the point where they say something: 1 GiB, 14.96 GiB."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return plural(round(count), "byte")


def told_apart(one: float, other: float, digits: int = 6) -> tuple[str, str]:
    """Two numbers in `digits` significant digits, or in as many more as show that they differ: 1.00003, 1."""
    for count in range(digits, _ALL_DIGITS + 1):
        said = f"{one:.{count}g}", f"{other:.{count}g}"
        if said[0] != said[1]:
            break
    return said


def listed(names: Sequence[str], limit: int = 3) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """` (did you mean ...?)` with the known name that is closest; empty where none is close."""
    close = difflib.get_close_matches(given.lower(), list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
