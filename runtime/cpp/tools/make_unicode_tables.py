"""Write src/text/unicode_tables.inc: the Unicode facts that tokenizers depend on, as Python's `tokenizers` sees them.

Categories are asked from the regular expressions of the installed `tokenizers`, one code point at a time, and not taken
from a Unicode database of another version: token ids must be the same. Canonical compositions and combining classes are
those of `unicodedata` as far as the NFC and NFD of `tokenizers`, which are of an older Unicode, know the character.

    python runtime/cpp/tools/make_unicode_tables.py
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Regex, normalizers, pre_tokenizers

OUTPUT = Path(__file__).resolve().parent.parent / "src" / "text" / "unicode_tables.inc"
# The order is that of `enum Category` in unicode.h.
CATEGORIES = (
    *("Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"),
    *("Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"),
)


def code_points() -> Iterator[int]:
    """Every code point that a string can hold."""
    return (point for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF)


def matching(pattern: str, points: Iterable[int]) -> set[int]:
    """The code points that a regular expression of one character matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    return {point for point in points if not split.pre_tokenize_str(chr(point))}


def category_ranges() -> list[int]:
    """Where each run of one category begins, as `start << 8 | index into CATEGORIES`."""
    of: dict[int, int] = dict.fromkeys(range(0xD800, 0xE000), CATEGORIES.index("Cs"))
    left = set(code_points())
    for index, name in enumerate(CATEGORIES):
        if name not in ("Cs", "Cn"):
            found = matching(rf"\p{{{name}}}", sorted(left))
            of.update(dict.fromkeys(found, index))
            left -= found
    ranges, previous = [], -1
    for point in range(0x110000):
        category = of.get(point, 0)
        if category != previous:
            ranges.append(point << 8 | category)
            previous = category
    return ranges


def decompositions() -> list[tuple[int, int, int, bool]]:
    """(code point, first, second or 0, whether NFC puts them together again), for canonical decompositions."""
    nfc, nfd = normalizers.NFC(), normalizers.NFD()
    found = []
    for point in code_points():
        fields = unicodedata.decomposition(chr(point))
        if not fields or fields.startswith("<"):
            continue
        full = nfd.normalize_str(chr(point))
        if full == chr(point):
            continue  # newer than what tokenizers knows
        if full != unicodedata.normalize("NFD", chr(point)):
            raise SystemExit(f"U+{point:04X} decomposes otherwise in tokenizers and in unicodedata")
        parts = [int(part, 16) for part in fields.split()]
        found.append((point, parts[0], parts[1] if len(parts) > 1 else 0, nfc.normalize_str(full) == chr(point)))
    return found


def combining_class(point: int) -> int:
    """The canonical combining class, or 0 where tokenizers does not reorder the character."""
    combining = unicodedata.combining(chr(point))
    if not combining:
        return 0
    low, high = "\u0334", "\u0345"  # of classes 1 and 240
    before, after = (chr(point), low) if combining > 1 else (high, chr(point))
    moved = normalizers.NFD().normalize_str(f"a{before}{after}") == f"a{after}{before}"
    return combining if moved else 0


def combining_ranges() -> list[tuple[int, int, int]]:
    """(first, last, canonical combining class) for runs of code points whose class is not 0."""
    runs: list[tuple[int, int, int]] = []
    for point in code_points():
        combining = combining_class(point)
        if combining and runs and runs[-1][1] == point - 1 and runs[-1][2] == combining:
            runs[-1] = (runs[-1][0], point, combining)
        elif combining:
            runs.append((point, point, combining))
    return runs


def table(declaration: str, cells: Iterable[str]) -> list[str]:
    """A C++ array, filled to the line length."""
    lines, line = [f"{declaration} = {{"], "   "
    for cell in cells:
        if len(line) + len(cell) + 2 > 118:
            lines.append(line)
            line = "   "
        line += f" {cell},"
    return [*lines, line, "};", ""]


def main() -> None:
    """Write the file."""
    white = sorted(matching(r"\s", code_points()))
    lines = ["// Made by tools/make_unicode_tables.py; not to be edited.", ""]
    lines += table("constexpr std::uint32_t kCategoryRanges[]", (f"{cell:#x}" for cell in category_ranges()))
    lines += table("constexpr char32_t kWhiteSpace[]", (f"{point:#x}" for point in white))
    lines += table(
        "constexpr Decomposition kDecompositions[]",
        (f"{{{p:#x}, {a:#x}, {b:#x}, {str(c).lower()}}}" for p, a, b, c in decompositions()),
    )
    lines += table("constexpr Combining kCombining[]", (f"{{{a:#x}, {b:#x}, {c}}}" for a, b, c in combining_ranges()))
    OUTPUT.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
