"""Files that a user names, opened only where they are regular: a pipe waits for its other end, a device never ends."""

from __future__ import annotations

import codecs
import errno
import json
import os
import stat
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any

from blockexport.models.errors import UsageError
from blockexport.models.strict_json import shown

TEXT_BYTES = 1 << 28
"""The most that is read of a text file: eight times the largest tokenizer.json known."""

_DIGITS = 300  # of a whole number in JSON: one more hundred, and it is no floating-point number

Pairs = Callable[[list[tuple[str, Any]]], Any]


def open_regular(path: Path) -> BufferedReader:
    """The file at `path`, open for reading.

    Raises:
        UsageError: it is not there, may not be read, or is no regular file; a link counts as what it leads to.
    """
    try:
        # Not waiting is for pipes; regular files are read as ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {_reason(path, error)}") from error
    except ValueError as error:
        raise UsageError(f"{str(path)!r} cannot be read: no file can have such a name ({error})") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise UsageError(f"{path} is {kind_of(mode)}, and has to be a file")
    return os.fdopen(descriptor, "rb")


def is_there(path: Path) -> bool:
    """Whether `path` names a regular file.

    Raises:
        UsageError: it names something else, a link to nothing included: an optional file is not passed over then.
    """
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        raise UsageError(f"{path} is {kind_of(mode)}, and has to be a file: remove it, or put the file there")
    return mode is not None


def is_anything(path: Path) -> bool:
    """Whether `path` names a file, a folder or anything else that is there.

    Raises:
        UsageError: it is or passes through a link that leads nowhere, or a folder that may not be looked into.
    """
    return _mode(path) is not None


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except ValueError:  # a null character or half of a character, which no name has
        return None
    except OSError as error:  # or a folder that may not be looked into, a path that is too long
        if isinstance(error, FileNotFoundError | NotADirectoryError) and _broken_link(path) is None:
            return None
        raise UsageError(f"{path} cannot be read: {_reason(path, error)}") from error


def require_readable(path: Path) -> None:
    """For a library that is about to open `path` itself. Raises UsageError as `open_regular` does."""
    open_regular(path).close()


def read_bytes(path: Path, limit: int = TEXT_BYTES) -> bytes:
    """The content of `path`. Raises UsageError when it cannot be read or has more than `limit` bytes."""
    with open_regular(path) as file:
        try:
            content = file.read(limit + 1)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {_reason(path, error)}") from error
    if len(content) > limit:
        raise UsageError(f"{path} has more than {limit} bytes, the most that is read of such a file")
    return content


def read_text(path: Path, limit: int = TEXT_BYTES) -> str:
    """The text in `path`, which has at most `limit` bytes.

    Raises:
        UsageError: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        return read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 ({error}): convert it, or fetch it again") from error


def read_beginning(path: Path, limit: int) -> str:
    """The first `limit` bytes of a text of any length, without a character that they cut.

    Raises:
        UsageError: it cannot be read.
        UnicodeDecodeError: it is not UTF-8.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    return codecs.getincrementaldecoder("utf-8")().decode(content[:limit], final=len(content) <= limit)


def read_json(path: Path, remedy: str, pairs: Pairs | None = None) -> Any:
    """The JSON value in `path`; `remedy` ends the message where it is none.

    Args:
        path: the file.
        remedy: what to do about it, as a clause.
        pairs: makes each object out of its keys and values; ValueError from it is a fault of the file.

    Raises:
        UsageError: it cannot be read, or is not JSON.
    """
    content = read_bytes(path)
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=pairs, parse_int=_whole_number)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON ({error}): {remedy}") from error


def no_repeated_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, as the `pairs` of `read_json`. Raises ValueError where a key has two values: readers differ in
    which of them they take."""
    data = dict(pairs)
    if len(data) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} appears more than once")
    return data


def _whole_number(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def read_json_object(path: Path, remedy: str, pairs: Pairs | None = None) -> dict[str, Any]:
    """As `read_json`, for a file that has to hold one object with keys."""
    value = read_json(path, remedy, pairs)
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds {shown(value)}, and has to hold one JSON object: {remedy}")
    return value


def is_text(value: str) -> bool:
    """Whether UTF-8 can say it: JSON can hold halves of characters, as \\ud800, that no file and no tokenizer takes."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def require_utf8(path: str | Path) -> None:
    """Raise UsageError where the name of `path` is not UTF-8, which ONNX Runtime and every file that names it need."""
    name = os.fsencode(path)
    if is_text(str(path)):
        return
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"the path {str(path)!r} is not UTF-8: rename it") from None
    raise UsageError(f"the path {name.decode()!r} is UTF-8, and this locale is not: set LC_ALL=C.UTF-8 and try again")


def kind_of(mode: int) -> str:
    """What a file type is called that is not a regular file, from `st_mode`."""
    kinds = {
        stat.S_ISDIR: "a folder",
        stat.S_ISCHR: "a character device",
        stat.S_ISBLK: "a block device",
        stat.S_ISFIFO: "a pipe",
        stat.S_ISSOCK: "a socket",
    }
    return next((name for test, name in kinds.items() if test(mode)), "a special file")


def _reason(path: Path, error: OSError) -> str:
    reason, link = error.strerror or str(error), _broken_link(path)
    if link is None:
        return reason
    target, end = str(link.readlink()), os.path.realpath(link)
    said = f"{'it' if link == path else link} is a link to {target}" + ("" if target == end else f" ({end})")
    if isinstance(error, FileNotFoundError):
        return f"{said}, and there is nothing there: fetch it again, or copy it with what its links point to (cp -L)"
    return f"{said}, and links lead in a circle from there" if error.errno == errno.ELOOP else f"{said}: {reason}"


def _broken_link(path: Path) -> Path | None:
    """The link, `path` itself or a folder on the way to it, behind which nothing can be reached."""
    # pathlib's own raise where a folder on the way may not be looked into.
    links = (each for each in (path, *path.parents) if os.path.islink(each))  # noqa: PTH114
    return next((link for link in links if not os.path.exists(link)), None)  # noqa: PTH110
