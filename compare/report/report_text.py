"""Text for report.html: numbers as people write them, and sentences."""

from __future__ import annotations

import math

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NARROW = "\u202f"  # a narrow space at which no line breaks
PLAIN_FROM, PLAIN_BELOW = 1e-3, 1e5  # numbers in between are written without a power of ten


def power(exponent: int) -> str:
    """A power of ten."""
    return "1" if exponent == 0 else "10" + str(exponent).translate(SUPERSCRIPT)


def figure(number: float) -> str:
    """A number with two significant digits: 0.012, or a power of ten."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else ("∞" if number > 0 else "−∞")
    if number == 0:
        return "0"
    mantissa, exponent = f"{abs(number):.1e}".split("e")
    sign = "−" if number < 0 else ""
    if PLAIN_FROM <= abs(number) < PLAIN_BELOW:
        digits = max(1 - int(exponent), 0)
        return f"{sign}{float(f'{abs(number):.1e}'):,.{digits}f}"
    return f"{sign}{mantissa}{NARROW}×{NARROW}{power(int(exponent))}"


def ratio(number: float) -> str:
    """How many times something is another: 0.82, 24.1, 1,340, or a power of ten."""
    if not math.isfinite(number) or number >= PLAIN_BELOW:
        return figure(number)
    return f"{number:.2f}" if number < 10 else f"{number:,.1f}" if number < 100 else f"{number:,.0f}"


def plural(count: int, one: str, many: str = "") -> str:
    """A count with its noun."""
    return f"{count:,}\u00a0{one if count == 1 else many or one + 's'}"


def span(first: int, last: int) -> str:
    """A range of positions."""
    return str(first) if first == last else f"{first}–{last}"


def full_stop(text: str) -> str:
    """A sentence of the report, which come without one."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def capital(text: str) -> str:
    """With a capital letter in front."""
    return text[:1].upper() + text[1:]
