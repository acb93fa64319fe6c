"""Text into token ids, by the `tokenizers` library: here, or in a process with limits where its time has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from blockexport.models.errors import UsageError
from blockexport.models.native_output import captured_stderr
from blockexport.models.regular_file import read_text
from blockexport.runtime.text.bounded_process import Bounds, OutOfBounds, run_bounded, serve
from blockexport.runtime.text.tokenizer_pipeline import is_bounded


@dataclass(frozen=True)
class Encoded:
    """The ids of a text: with what the post-processor adds to it (BOS, EOS), and without."""

    whole: list[int]
    plain: list[int]


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer.json.

    Attributes:
        tokenizer: the library's, which gives the text of tokens. Its own `encode` may have no limits.
        decoder: that entry of the file.
        encode: text into ids; UsageError where the tokenizer fails.
    """

    tokenizer: Tokenizer
    decoder: Any
    encode: Callable[[str], Encoded]


def load_tokenizer(path: Path) -> LoadedTokenizer:
    """The tokenizer in `path`.

    Raises:
        UsageError: the file cannot be read or is no tokenizer.
    """
    source = read_text(path)
    try:
        data = json.loads(source)
        bounded = is_bounded(data)
        if not bounded:  # as much of it as decoding needs
            kept = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "truncation", "padding"))
            source = json.dumps({**data, **kept})
        with captured_stderr():  # where the library tells of its own panics
            tokenizer = _parsed(source)
    except (ValueError, TypeError, RecursionError, _TokenizerError) as error:
        raise UsageError(f"{path} is not a tokenizer ({error}): fetch the file again, or remove it") from error
    if bounded:
        return LoadedTokenizer(tokenizer, data.get("decoder"), lambda text: _encoded_here(path, tokenizer, text))
    return LoadedTokenizer(tokenizer, data.get("decoder"), lambda text: _encoded_apart(path, text))


class _TokenizerError(Exception):
    """What the library raised, in words."""


def _parsed(source: str) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(source)
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except BaseException as error:
        raise _explained(error) from error
    return tokenizer


def _explained(error: BaseException) -> BaseException:
    """The library raises bare exceptions, and panics, which are none that `except Exception` sees."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return _TokenizerError(str(error))
    return error


def _encoded_here(path: Path, tokenizer: Tokenizer, text: str) -> Encoded:
    try:
        return _encode(tokenizer, text)
    except _TokenizerError as error:
        raise _failed(path, str(error)) from error


def _encoded_apart(path: Path, text: str) -> Encoded:
    bounds = Bounds(
        # Loading a large vocabulary and a long text take their time: these are ten times of it.
        cpu_seconds=3 + (path.stat().st_size >> 22) + (len(text) >> 20),
        memory_bytes=(1 << 30) + 32 * (path.stat().st_size + len(text)),
    )
    try:
        answer = run_bounded(__name__, {"path": str(path.absolute()), "text": text}, bounds)
    except OutOfBounds as error:
        raise _failed(path, str(error)) from error
    if "error" in answer:
        raise _failed(path, answer["error"])
    return Encoded(answer["whole"], answer["plain"])


def _failed(path: Path, reason: str) -> UsageError:
    return UsageError(f"{path} cannot read this text: {reason}. Give token ids, or the model's own tokenizer")


def _encode(tokenizer: Tokenizer, text: str) -> Encoded:
    try:
        text.encode("utf-8")  # the library panics over half of a character
        whole = tokenizer.encode(text, add_special_tokens=True).ids
        return Encoded(whole, tokenizer.encode(text, add_special_tokens=False).ids)
    except BaseException as error:
        raise _explained(error) from error


def _work(request: Any) -> dict[str, Any]:
    try:
        encoded = _encode(_parsed(read_text(Path(request["path"]))), request["text"])
    except (UsageError, _TokenizerError) as error:
        return {"error": str(error)}
    return {"whole": encoded.whole, "plain": encoded.plain}


if __name__ == "__main__":
    serve(_work)
