"""A thousand lines of mixed text, the same on every run: what tokenizers and streaming decoders trip over."""

from __future__ import annotations

import random
import unicodedata

_WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "lazy",
    "it's",
    "we'll",
    "they've",
    "I'd",
    "DON'T",
    "don't",
    "camelCaseName",
    "snake_case_name",
    "HTTPServer",
    "x",
    "supercalifragilisticexpialidocious",
    "antidisestablishmentarianism",
    "re-enter",
    "e.g.",
    "U.S.A.",
)
_ACCENTS = (
    "café",
    "naïve",
    "Ångström",
    "žluťoučký",
    "kůň",
    "übermäßig",
    "señor",
    "São",
    "Łódź",
    "İstanbul",
    "straße",
    "ﬁne",
    "ǅungla",
    "cafe\u0301 n\u0303",  # combining accents
)
_SCRIPTS = (
    "你好，世界。",
    "机器学习模型",
    "日本語のテキスト",
    "カタカナ",
    "한국어 문장",
    "مرحبا بالعالم",
    "שלום עולם",
    "हिन्दी में पाठ",
    "ภาษาไทย",
    "Ελληνικά",
    "русский текст",
    "ქართული",
    "𠜎𠜱𡿺",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
)
_EMOJI = ("🙂", "👍🏽", "👨\u200d👩\u200d👧\u200d👦", "🇫🇷🇯🇵", "❤️", "🏳️\u200d🌈", "🧑🏿\u200d🚀", "☃", "🀄", "1️⃣")
_CODE = (
    "def f(x: int) -> str:",
    "\treturn f'{x!r:>10}'  # 100%",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] << 2; }",
    "#include <vector>",
    "if (p != nullptr && !q->empty()) return *p;",
    "SELECT * FROM t WHERE id >= 10 AND name LIKE '%x_';",
    "</div><br/>&nbsp;",
    "let v = vec![1_000u64; 3];",
    "$ ls -la | grep '^d' >> out.txt 2>&1",
    "\\frac{1}{2}\\alpha^{2}",
    "https://example.org/a/b?c=1&d=%20#frag",
    "0x1F 0b1010 1e-9 3.14159",
    '{"key": [null, true, -1.5e+3]}',
    "@@ -1,7 +1,9 @@",
    "=== !== <=> ::: ... --- ___ ***",
)
_RUNS = tuple(" " * length for length in (1, 1, 1, 2, 3, 4, 7, 16, 33))
_SPACES = (*_RUNS, "\t", "\t\t ", " \t", "\n", "\n\n", " \n ", ":\n//", "\r\n", "\u00a0", "\u3000", "\u2009")
_DIGITS = ("7", "42", "123", "2024", "1234567890", "3.14", "1,000,000", "٣٤٥", "१२३", "½", "Ⅷ", "x2", "²", "٪", "१a1")
_LIKE_SPECIAL = ("<s>", "</s>", "<unk>", "<0x41>", "<|im_start", "|im_end|>", "[INST]", "▁", "a▁b", "Ġ", "<|>")


def mixed_lines(count: int = 1000, seed: int = 20) -> list[str]:
    """`count` lines, each a random run of words, code, digits, accents, other scripts, emoji and spaces."""
    rng = random.Random(seed)
    pools = (
        _WORDS,
        _WORDS,
        _ACCENTS,
        _SCRIPTS,
        _EMOJI,
        _CODE,
        _DIGITS,
        _LIKE_SPECIAL,
    )
    lines = []
    for _ in range(count):
        parts: list[str] = []
        if rng.random() < 0.2:
            parts.append(rng.choice(_SPACES))
        for _ in range(rng.randint(1, 12)):
            parts.append(rng.choice(rng.choice(pools)))
            parts.append(rng.choice(_SPACES) if rng.random() < 0.85 else rng.choice("'-_.,;:!?()/\\\"#"))
        lines.append("".join(parts) if rng.random() < 0.3 else "".join(parts).rstrip(" "))
    return lines


def scattered_code_points(count: int = 300, seed: int = 21) -> list[str]:
    """Lines of assigned code points from all over Unicode. A code point of a later version than a reader's tables is no
    letter to it, so unassigned ones would test the age of those tables; surrogates and private use are left out too."""
    rng = random.Random(seed)

    def character() -> str:
        while True:
            code = rng.choice(
                (rng.randrange(0x20, 0x3000), rng.randrange(0x20, 0xD800), rng.randrange(0x10000, 0x20000))
            )
            if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co"):
                return chr(code)

    return ["".join(rng.choice(" a1.") if rng.random() < 0.3 else character() for _ in range(30)) for _ in range(count)]
