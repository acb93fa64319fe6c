"""How text is cut into words before byte-level BPE, by the names GGUF files use (`tokenizer.ggml.pre`).

The expressions are those of the models' own tokenizer.json; llama.cpp (src/llama-vocab.cpp) maps the names to the same
ones with a few differences. `qwen2` normalises to NFC in the model's file, and llama.cpp leaves that out. Contractions
match case as Unicode folds it (a long s after an apostrophe counts as an s), and llama.cpp's as ASCII does.
The two of DeepSeek are llama.cpp's: no space belongs to a run of signs or Asian letters, be it U+3000, and
`deepseek-llm` keeps runs of digits together, which that vocabulary has no merges for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_LETTERS = (  # Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee and other letters that have case
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134"
    "\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_SIGNS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002"
_DEEPSEEK_ASIAN = "(?:(?!\\s)[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff])+"


@dataclass(frozen=True)
class PreTokenizer:
    """How a `tokenizer.ggml.pre` cuts text: one expression after the other, then bytes."""

    patterns: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False  # a word that is a token stays whole, whatever the merges say
    add_bos_token: bool = False  # when the file does not say


_LLAMA3 = PreTokenizer((_LLAMA3_WORDS,), ignore_merges=True, add_bos_token=True)
_DIGITS = PreTokenizer((r"\p{N}", _GPT2_WORDS))
_GPT2 = PreTokenizer((_GPT2_WORDS,))
_QWEN2_PLAIN = PreTokenizer((_QWEN2_WORDS,))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2,
    "mellum": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "minerva-7b": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "qwen2": PreTokenizer((_QWEN2_WORDS,), nfc=True),
    "deepseek-r1-qwen": _QWEN2_PLAIN,
    "megrez": _QWEN2_PLAIN,
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            rf"\s?[{_DEEPSEEK_SIGNS}]+",
            r"\s+(?!\s|\S)",  # before the end; the model's file has $, which the C++ tokenizer does not take
            _DEEPSEEK_ASIAN,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_ASIAN, r"\p{N}")),
    "tekken": PreTokenizer((_TEKKEN_WORDS,), ignore_merges=True, add_bos_token=True),
}
