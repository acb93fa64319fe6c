"""Read a SentencePiece `tokenizer.model` far enough to rebuild a `tokenizer.json` from it.

The file is one protobuf message (sentencepiece_model.proto in google/sentencepiece); the few fields needed here are
read off the wire, which spares a dependency. GGUF's `llama` tokenizer is a transcript of the same fields, so the result
is given in its keys and takes the same way from there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockexport.models.errors import UsageError
from blockexport.models.regular_file import open_regular

# Field numbers of ModelProto and its parts.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE = 3
_SPECIAL_IDS = {"unknown": (40, 0), "bos": (41, 1), "eos": (42, 2), "padding": (43, -1)}  # number and default
_CHARSMAP, _ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES = 2, 3, 4
_BPE = 2


def read_sentencepiece(path: Path) -> dict[str, Any]:
    """The model's pieces, scores, types and special ids as GGUF metadata of a `llama` tokenizer.

    Raises:
        UsageError: not a SentencePiece BPE model, or one that rewrites characters or drops spaces.
    """
    try:
        with open_regular(path) as file:
            return _metadata(file.read())
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is no SentencePiece model or is damaged: fetch the file again") from error


def _metadata(data: bytes) -> dict[str, Any]:
    pieces = [_message(value) for number, value in _fields(data) if number == _PIECES]
    top = _message(data)
    trainer, normalizer = _message(top.get(_TRAINER, b"")), _message(top.get(_NORMALIZER, b""))
    if trainer.get(_MODEL_TYPE, 1) != _BPE:
        raise UsageError("its model is not BPE (unigram models are not converted)")
    if normalizer.get(_CHARSMAP, b""):
        raise UsageError("its normaliser rewrites characters, which is not converted")
    # The default is true; Llama's own model switches it off.
    if normalizer.get(_REMOVE_EXTRA_WHITESPACES, 1):
        raise UsageError("its normaliser removes repeated spaces, which is not converted")
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [_text(piece.get(_PIECE, b"")) for piece in pieces],
        "tokenizer.ggml.scores": [_float(piece.get(_SCORE, b"\0\0\0\0")) for piece in pieces],
        "tokenizer.ggml.token_type": [piece.get(_TYPE, 1) for piece in pieces],
        "tokenizer.ggml.add_space_prefix": bool(normalizer.get(_ADD_DUMMY_PREFIX, 1)),
    }
    for name, (number, default) in _SPECIAL_IDS.items():
        value = _signed(trainer.get(number, default))
        if value >= 0:
            metadata[f"tokenizer.ggml.{name}_token_id"] = value
    return metadata


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) along a message: integers as they are, everything else as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise IndexError(f"wire type {wire}")
        if at + length > len(data):
            raise IndexError("a field runs past the end")
        yield number, data[at : at + length]
        at += length


def _message(data: int | bytes) -> dict[int, int | bytes]:
    """The last value of every field, which is what protobuf means by a repeated scalar."""
    if isinstance(data, int):
        raise IndexError("a number where a message belongs")
    return dict(_fields(data))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _text(value: int | bytes) -> str:
    if isinstance(value, int):
        raise IndexError("a number where text belongs")
    return value.decode("utf-8")


def _float(value: int | bytes) -> float:
    if isinstance(value, int):
        raise IndexError("an integer where a float belongs")
    return float(struct.unpack("<f", value)[0])


def _signed(value: int | bytes) -> int:
    """protobuf writes a negative int32 as a 64-bit two's complement."""
    if isinstance(value, bytes):
        raise IndexError("bytes where a number belongs")
    return value - (1 << 64) if value >= 1 << 63 else value
