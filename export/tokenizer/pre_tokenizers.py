"""How text is cut into words before byte-level BPE, by the names GGUF files use (`tokenizer.ggml.pre`).

The expressions are those of the models' own tokenizer.json; llama.cpp (src/llama-vocab.cpp) maps the names to the same
ones with two differences. `qwen2` normalises to NFC in the model's file, and llama.cpp leaves that out. Contractions
match case as Unicode folds it (a long s after an apostrophe counts as an s), and llama.cpp's as ASCII does.
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


@dataclass(frozen=True)
class PreTokenizer:
    """How a `tokenizer.ggml.pre` cuts text: one expression after the other, then bytes."""

    patterns: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False  # a word that is a token stays whole, whatever the merges say
    add_bos_token: bool = False  # when the file does not say


_LLAMA3 = PreTokenizer((_LLAMA3_WORDS,), ignore_merges=True, add_bos_token=True)
_DIGITS = PreTokenizer((r"\p{N}", _GPT2_WORDS))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2_WORDS,)),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": PreTokenizer((_QWEN2_WORDS,), nfc=True),
    "deepseek-r1-qwen": PreTokenizer((_QWEN2_WORDS,)),
    "tekken": PreTokenizer((_TEKKEN_WORDS,), ignore_merges=True, add_bos_token=True),
}
