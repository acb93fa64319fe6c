"""Reads an ONNX file by what is in it, without its weights: for rules that look at the graph alone."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import onnx
from google.protobuf.json_format import ParseError as JsonError  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.protobuf.text_format import ParseError as TextError  # type: ignore[import-untyped]
from onnx.parser import ParseError
from onnx.serialization import registry

from blockexport.export.bundle.model_bounds import check_bounds
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import open_regular

_REMEDY = "Give a bundle's model.onnx, or any other"
_LIMIT = 2 << 30  # bytes: protobuf's own
_WEIGHT = 1 << 16  # bytes: a tensor beyond is a weight, and nothing that decides a shape


def read_graph(path: Path) -> onnx.ModelProto:
    """The model in an ONNX file, its larger tensors without their values and its external data unread.

    The file is binary ONNX whatever its name; one of the textual formats is read where the name says so.

    Raises:
        UsageError: there is no such file, it is no regular file, too large, not ONNX, or beyond what can be followed.
    """
    content = _content(path)
    form = registry.get_format_from_file_extension(path.suffix)
    model = _textual(content, form) or _binary(path, content, form)
    if not model.graph.node:
        raise UsageError(f"{path} holds no graph. {_REMEDY}")
    check_bounds(model, path)
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) > _WEIGHT:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
    return model


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _LIMIT:
            content = file.read(_LIMIT + 1)
            size = len(content)  # some files, such as those in /proc, do not tell it before
    if size > _LIMIT:
        raise UsageError(
            f"{path} has {size} bytes, and an ONNX file has {_LIMIT} at most, with larger weights beside it. {_REMEDY}"
        )
    return content


def _textual(content: bytes, form: str | None) -> onnx.ModelProto | None:
    """The model in a textual format, or None where it is in no such format or the content does not fit."""
    if form in (None, "protobuf"):
        return None
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # one format calls itself experimental
            return onnx.load_model_from_string(content, format=form)
    except (TextError, JsonError, ParseError, ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None


def _binary(path: Path, content: bytes, form: str | None) -> onnx.ModelProto:
    try:
        return onnx.load_model_from_string(content)
    except (DecodeError, ValueError) as error:
        forms = "binary ONNX" if form in (None, "protobuf") else f"ONNX, neither binary nor as {form}"
        raise UsageError(f"{path} is not an ONNX file: its content is not {forms}. {_REMEDY}") from error
