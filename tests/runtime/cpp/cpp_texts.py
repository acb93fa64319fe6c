"""Seeded texts for the C++ tokenizer: everything that a user, a document or an attacker may feed to it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.mixed_text import mixed_lines

_SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2003\u2009\u2028\u2029\u202f\u205f\u3000\ufeff\u200b"
_MARKS = "\u0300\u0301\u0323\u0327\u0334\u0345\u0591\u05b0\u064b\u0e38\u0f71\u1dce\u20d0\u302a\u3099\ua8e0"
_FOLDING = (
    "'s",
    "'S",
    "'\u017f",
    "'t",
    "'T",
    "'re",
    "'rE",
    "'ve",
    "'VE",
    "'m",
    "'LL",
    "'Ll",
    "'d",
    "\u2019s",
    "''",
    "'x",
)


def _code_point(rng: random.Random) -> str:
    """Any scalar value, with more weight on the planes and the corners where text lives."""
    top = rng.choice((0x80, 0x100, 0x250, 0x3000, 0xD800, 0x20000, 0x110000))
    code = rng.randrange(top)
    return chr(code if not 0xD800 <= code < 0xE000 else code - 0x1000)


def random_texts(count: int, added_tokens: Sequence[str], seed: int = 0) -> list[str]:
    """`count` texts: mixed lines, random Unicode, control characters, spaces, marks, and special tokens in between."""
    rng = random.Random(seed)
    mixed = mixed_lines(max(count // 4, 1), seed)

    def unit() -> str:
        kind = rng.randrange(10)
        if kind == 0:
            return rng.choice(added_tokens)
        if kind == 1:
            return "".join(rng.choice(_SPACES) for _ in range(rng.randint(1, 4)))
        if kind == 2:
            return chr(rng.randrange(0x20)) + rng.choice(("", "\x7f", "\x00"))
        if kind == 3:
            return rng.choice(_FOLDING)
        if kind == 4:
            marks = "".join(rng.choice(_MARKS) for _ in range(rng.randint(1, 3)))
            return rng.choice("aeou\u1100\u1161\u11a8\uac00") + marks
        if kind == 5:
            return "".join(rng.choice("0123456789\u0663\u00bd") for _ in range(rng.randint(1, 7)))
        if kind == 6:
            return rng.choice(added_tokens)[: rng.randint(1, 6)]
        return "".join(_code_point(rng) for _ in range(rng.randint(1, 6)))

    texts = ["", " ", "  ", "\u2581", "\u2581\u2581a", *mixed]
    while len(texts) < count:
        pieces = [unit() for _ in range(rng.randint(1, 8))]
        texts.append(rng.choice(("", " ")).join(pieces))
    return texts[:count]
