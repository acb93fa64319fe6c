"""From token ids back to text, token by token.

Every token stands for a few bytes; the text is the UTF-8 decoding of the bytes in a row, with U+FFFD where they are no
UTF-8. A character may be spread over several tokens, so bytes are held back until it is whole: what has been emitted
never changes. On valid UTF-8 the result is that of the `tokenizers` library. On a broken sequence the library replaces
all bytes of a run of byte tokens, the readable ones too; here those stay.

The `decoder` of a tokenizer.json says how tokens become bytes; the kinds that byte-level and SentencePiece models use
are known, any other is refused by name.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer

from blockexport.models.errors import UsageError

_LONGEST_STRIP = 16  # characters; SentencePiece's is one
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for U+0100 and up in order.

    Source: bytes_to_unicode in openai/gpt-2, src/encoder.py.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_LETTERS = _byte_level_alphabet()
"""The byte that each letter stands for."""


@dataclass(frozen=True)
class _Rules:
    """What a `decoder` asks for."""

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    strip: str = ""  # taken off the front of the whole text, once

    def bytes_of(self, token: str) -> bytes:
        if self.byte_level and all(letter in BYTE_LETTERS for letter in token):
            return bytes(BYTE_LETTERS[letter] for letter in token)
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.byte_fallback and (match := _BYTE_PIECE.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.encode("utf-8")


def _rules(decoder: Mapping[str, Any] | None) -> _Rules:
    try:
        return _known_rules(decoder)
    except (AttributeError, KeyError, TypeError) as error:
        raise UsageError(
            f"tokenizer.json describes its decoder in a way that is not known ({error!r}): fetch the file again"
        ) from error


def _known_rules(decoder: Mapping[str, Any] | None) -> _Rules:
    rules = _Rules()
    parts = [] if decoder is None else decoder.get("decoders", []) if decoder["type"] == "Sequence" else [decoder]
    for part in parts:
        kind = part["type"]
        if kind == "ByteLevel":
            rules = replace(rules, byte_level=True)
        elif kind == "ByteFallback":
            rules = replace(rules, byte_fallback=True)
        elif kind == "Replace" and "String" in part["pattern"]:
            pair = (part["pattern"]["String"], part["content"])
            rules = replace(rules, replacements=(*rules.replacements, pair))
        elif kind == "Metaspace":
            strip = "" if part.get("prepend_scheme", "always") == "never" else " "
            rules = replace(rules, replacements=(*rules.replacements, (part["replacement"], " ")), strip=strip)
        elif kind == "Strip" and part["stop"] == 0 and part["start"] <= _LONGEST_STRIP:
            rules = replace(rules, strip=part["content"] * part["start"])
        elif kind != "Fuse":
            raise UsageError(
                f"tokenizer.json decodes with {kind!r} ({str(part)[:80]}), and the known decoders are ByteLevel, "
                "Replace, ByteFallback, Fuse, Strip and Metaspace: use the token ids and decode them elsewhere"
            )
    return rules


class TokenBytes:
    """The bytes of every token of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, decoder: Mapping[str, Any] | None) -> None:
        """`decoder` is that entry of the tokenizer's JSON. Raises UsageError when it holds an unknown kind."""
        self._tokenizer = tokenizer
        self._rules = _rules(decoder)
        self._special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}

    @property
    def strip(self) -> str:
        """What is taken off the front of a text: SentencePiece's own space."""
        return self._rules.strip

    def __getitem__(self, token_id: int) -> bytes:
        """Empty for special tokens, and for ids that are padding of the embedding and no tokens."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        return b"" if token is None or token_id in self._special else self._rules.bytes_of(token)


class StreamDecoder:
    """Turns ids into text as they come; the pieces joined are the decoding of all ids."""

    def __init__(self, tokens: TokenBytes) -> None:
        self._tokens = tokens
        self._strip = tokens.strip
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that has become certain with this token; empty while a character is incomplete."""
        return self._without_front(self._utf8.decode(self._tokens[token_id]))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that never became whole."""
        return self._without_front(self._utf8.decode(b"", final=True))

    def _without_front(self, text: str) -> str:
        while text and self._strip:
            if text[0] != self._strip[0]:
                self._strip = ""
            else:
                text, self._strip = text[1:], self._strip[1:]
        return text
