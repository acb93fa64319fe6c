"""Which tokenizers take no more time and memory than their text is long, by what their tokenizer.json asks for.

Any other may be sound, and may as well hold a regular expression that takes exponential time, or replacements that
double the text forty times. It is run in a process of its own, with limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blockexport.export.bundle.pre_tokenizers import PRE_TOKENIZERS

GROWTH = 16  # times that replacements may lengthen a text
LONGEST_WORD = 1000  # characters: WordPiece takes the square of it

_NORMALIZERS = frozenset(("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "BertNormalizer"))
_PRE_TOKENIZERS = frozenset(
    ("ByteLevel", "Metaspace", "Digits", "Whitespace", "WhitespaceSplit", "Punctuation", "BertPreTokenizer")
)
_POST_PROCESSORS = frozenset(("ByteLevel", "BertProcessing", "RobertaProcessing"))
_KNOWN_EXPRESSIONS = frozenset(pattern for pre in PRE_TOKENIZERS.values() for pattern in pre.patterns)


def is_bounded(tokenizer: Any) -> bool:
    """Whether every part of a parsed tokenizer.json is of a kind that needs no limits."""
    try:
        growth = 1.0
        for part in _parts(tokenizer.get("normalizer"), "normalizers"):
            growth *= _growth_of(part)
        cuts = list(_parts(tokenizer.get("pre_tokenizer"), "pretokenizers"))
        for part in cuts:
            growth *= 2.0 if part["type"] == "ByteLevel" else 1.0  # a letter of two bytes for a byte
        return (
            growth <= GROWTH
            and all(map(_cuts_quickly, cuts))
            and all(_adds_little(part) for part in _parts(tokenizer.get("post_processor"), "processors"))
            and _is_quick(tokenizer["model"])
        )
    except (AttributeError, KeyError, TypeError, RecursionError):  # it is not built as a tokenizer.json is
        return False


def _parts(part: Mapping[str, Any] | None, children: str) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for child in part[children]:
        yield from _parts(child, children)


def _growth_of(part: Mapping[str, Any]) -> float:
    """How many times longer a text may come out; infinite for a kind that is not known."""
    if part["type"] in _NORMALIZERS or (part["type"] == "Prepend" and len(part["prepend"]) <= GROWTH):
        return 1.0
    if part["type"] == "Replace" and part["pattern"].get("String"):
        return max(1.0, len(part["content"]) / len(part["pattern"]["String"]))
    return float("inf")


def _cuts_quickly(part: Mapping[str, Any]) -> bool:
    if part["type"] in _PRE_TOKENIZERS:
        return True
    pattern = part["pattern"] if part["type"] == "Split" else {}
    return bool(pattern.get("String")) or pattern.get("Regex") in _KNOWN_EXPRESSIONS


def _adds_little(part: Mapping[str, Any]) -> bool:
    if part["type"] in _POST_PROCESSORS:
        return True
    if part["type"] != "TemplateProcessing":
        return False
    single, known = part["single"], part["special_tokens"]  # the library panics over a token that is not among them
    return (
        len(single) <= GROWTH
        and sum("Sequence" in piece for piece in single) <= 1
        and all("Sequence" in piece or piece["SpecialToken"]["id"] in known for piece in single)
    )


def _is_quick(model: Mapping[str, Any]) -> bool:
    # Files from before 2020 leave the type out, for BPE.
    kind = model.get("type", "BPE")
    return kind in ("BPE", "Unigram", "WordLevel") or (
        kind == "WordPiece" and model["max_input_chars_per_word"] <= LONGEST_WORD
    )
