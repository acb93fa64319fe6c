"""Reads an ONNX file by what is in it, without its weights: for rules that look at the graph alone."""

from __future__ import annotations

import stat
from pathlib import Path

import onnx
from google.protobuf.json_format import ParseError as JsonError  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.protobuf.text_format import ParseError as TextError  # type: ignore[import-untyped]
from onnx.parser import ParseError
from onnx.serialization import registry

from blockexport.models.errors import UsageError

_LIMIT = 2 << 30  # bytes: protobuf's own
_WEIGHT = 1 << 16  # bytes: a tensor beyond is a weight, and nothing that decides a shape


def read_graph(path: Path) -> onnx.ModelProto:
    """The model in an ONNX file, its larger tensors without their values and its external data unread.

    The file is binary ONNX whatever its name; one of the textual formats is read where the name says so.

    Raises:
        UsageError: there is no such file, it is no regular file, too large, or not ONNX.
    """
    content = _content(path)
    model = _textual(path, content) or _binary(path, content)
    if not model.graph.node:
        raise UsageError(f"{path} holds no graph: give the model.onnx of a bundle, or any .onnx")
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) > _WEIGHT:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
    return model


def _content(path: Path) -> bytes:
    remedy = "give a bundle's model.onnx, or any other"
    try:
        status = path.stat()  # before it is opened: a pipe would wait for its other end
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} is {_kind(status.st_mode)} and not an ONNX file: {remedy}")
        size = status.st_size
        if size <= _LIMIT:
            with path.open("rb") as file:
                content = file.read(_LIMIT + 1)
            size = len(content)  # some files, such as those in /proc, do not tell it before
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if size > _LIMIT:
        raise UsageError(
            f"{path} has {size} bytes, and an ONNX file has {_LIMIT} at most, with larger weights beside it: {remedy}"
        )
    return content


def _kind(mode: int) -> str:
    kinds = {
        stat.S_ISDIR: "a folder",
        stat.S_ISCHR: "a character device",
        stat.S_ISBLK: "a block device",
        stat.S_ISFIFO: "a pipe",
    }
    return next((name for test, name in kinds.items() if test(mode)), "a special file")


def _textual(path: Path, content: bytes) -> onnx.ModelProto | None:
    """The model of a file whose name says that it is text, or None where the name or the content does not fit."""
    form = registry.get_format_from_file_extension(path.suffix)
    if form in (None, "protobuf"):
        return None
    try:
        return onnx.load_model_from_string(content, format=form)
    except (TextError, JsonError, ParseError, ValueError):  # UnicodeDecodeError is a ValueError
        return None


def _binary(path: Path, content: bytes) -> onnx.ModelProto:
    try:
        return onnx.load_model_from_string(content)
    except (DecodeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "its content is something else"
        raise UsageError(f"{path} is not an ONNX file ({reason}): give a bundle's model.onnx, or any other") from error
