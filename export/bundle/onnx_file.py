"""An ONNX file before anything follows its graph: a regular file, whole, within bounds, and its weights are there."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from blockexport.export.bundle.external_data import external_places
from blockexport.export.bundle.model_bounds import check_bounds
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import is_there, open_regular, require_readable

_LIMIT = 2 << 30  # bytes: protobuf's own


def read_onnx(path: Path, remedy: str) -> onnx.ModelProto:
    """The model in a binary ONNX file; weights in other files stay there.

    Args:
        path: the file.
        remedy: what to do about one that is none, as a sentence without its full stop.

    Raises:
        UsageError: it is not there, no regular file, too large, not ONNX, or beyond what can be followed.
    """
    try:
        model = onnx.load_model_from_string(onnx_content(path, remedy))
    except (DecodeError, ValueError) as error:
        raise UsageError(f"{path} is not a readable ONNX file ({error}). {remedy}") from error
    if not model.graph.node:  # protobuf reads many another file as a message of unknown fields
        raise UsageError(f"{path} is not a readable ONNX file (there is no graph in it). {remedy}")
    check_bounds(model, path)
    return model


def onnx_content(path: Path, remedy: str) -> bytes:
    """The bytes of an ONNX file. Raises UsageError as `read_onnx` does."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _LIMIT:
            content = file.read(_LIMIT + 1)
            size = len(content)  # some files, such as those in /proc, do not tell it before
    if size > _LIMIT:
        raise UsageError(
            f"{path} has {size} bytes, and an ONNX file has {_LIMIT} at most, with larger weights beside it. {remedy}"
        )
    return content


def require_file(path: Path, remedy: str) -> None:
    """Raise UsageError, which ends with `remedy`, where there is no file that can be read."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder, and has to be a file. {remedy}")
    if not is_there(path):
        raise UsageError(f"{path} is missing. {remedy}")
    require_readable(path)


def require_weights(model: onnx.ModelProto, path: Path, remedy: str) -> None:
    """Whether every piece of a weights file that the graph in `path` points to is there.

    Raises:
        UsageError: a file is missing or ends too early, or a piece is too short for its shape and type.
    """
    sizes: dict[str, int] = {}
    for place in external_places(model, path):
        file = path.parent / place.location
        if place.location not in sizes:
            require_file(file, f"{path.name} keeps its weights there. {remedy}")
            sizes[place.location] = file.stat().st_size
        if place.needed is not None and place.length not in (None, place.needed):
            raise UsageError(
                f"{path} says that the values of {place.tensor} have {place.length} bytes, and its shape and type need "
                f"{place.needed}. {remedy}"
            )
        end = place.offset + (place.needed or place.length or 0)
        if end > sizes[place.location]:
            raise UsageError(
                f"{file} has {sizes[place.location]} bytes and ends before {place.tensor}, which the graph reads up to "
                f"byte {end}. {remedy}"
            )
