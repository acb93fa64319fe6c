"""Reads an ONNX file by what is in it, without its weights: for rules that look at the graph alone."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
from google.protobuf.json_format import ParseError as JsonError  # type: ignore[import-untyped]
from google.protobuf.text_format import ParseError as TextError  # type: ignore[import-untyped]
from onnx.parser import ParseError
from onnx.serialization import registry

from blockexport.export.bundle.model_bounds import check_bounds
from blockexport.export.bundle.onnx_file import onnx_content, read_onnx

_REMEDY = "Give a bundle's model.onnx, or any other"
_WEIGHT = 1 << 16  # bytes: a tensor beyond is a weight, and nothing that decides a shape


def read_graph(path: Path) -> onnx.ModelProto:
    """The model in an ONNX file, its larger tensors without their values and its external data unread.

    The file is binary ONNX whatever its name; one of the textual formats is read where the name says so.

    Raises:
        UsageError: there is no such file, it is no regular file, too large, not ONNX, or beyond what can be followed.
    """
    form = registry.get_format_from_file_extension(path.suffix)
    if form in (None, "protobuf"):
        model = read_onnx(path, _REMEDY)
    else:
        model = _textual(path, form) or read_onnx(path, f"Nor is it readable as {form}. {_REMEDY}")
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) > _WEIGHT:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
    return model


def _textual(path: Path, form: str) -> onnx.ModelProto | None:
    """The model in a textual format, or None where the content is none or holds no graph."""
    content = onnx_content(path, _REMEDY)
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # one format calls itself experimental
            model = onnx.load_model_from_string(content, format=form)
    except (TextError, JsonError, ParseError, ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    if not model.graph.node:
        return None
    check_bounds(model, path)
    return model
