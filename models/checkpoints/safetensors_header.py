"""The header of a safetensors file: names, types, shapes and byte ranges, checked before a byte of data is used.

Format: https://github.com/huggingface/safetensors#format. Eight bytes of little-endian length, that much JSON, then
the tensors' bytes without gaps. Parsed here and not by the library because the exporter needs each tensor's place in
the file, and because a damaged file should be explained.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from blockexport.models.element_types import ELEMENT_TYPES
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import is_text, no_repeated_key, open_regular
from blockexport.models.strict_json import shown

ITEM_BITS: Mapping[str, int] = {
    **{one.safetensors: 8 * one.itemsize for one in ELEMENT_TYPES},
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "C64": 64,
}
"""Bits per element of every type the format knows, also of those that nothing here computes with."""

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the library's own limit


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a safetensors file: `length` bytes at `offset` bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of the file at `path`, in the order of their bytes.

    Raises:
        UsageError: the file cannot be read, is not safetensors, is truncated, or its byte ranges overlap, leave gaps
            or contradict the shapes.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or not 0 < length <= min(size - LENGTH_BYTES, MAX_HEADER_BYTES):
                raise UsageError(
                    f"{path} is not a safetensors file, or it is truncated: it has {size} bytes and its first eight "
                    f"announce a header of {length}. Download it again{_pointer_hint(path, size)}"
                )
            raw = file.read(length)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    data_start = LENGTH_BYTES + length
    tensors = {name: _stored(path, name, value, data_start) for name, value in _parse(path, raw).items()}
    ordered = dict(sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].length)))
    _check_layout(path, ordered, data_start, size)
    return ordered


def _pointer_hint(path: Path, size: int) -> str:
    if size < 1024 and path.read_bytes().startswith(b"version https://git-lfs"):
        return " with `git lfs pull`: this is only the pointer that stands for it"
    return ""


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=no_repeated_key)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is damaged or not a safetensors file: its header is not JSON ({error}). Download it again"
        ) from error
    if not isinstance(header, dict):
        raise UsageError(f"{path} is damaged: its header is not a JSON object. Download it again")
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not _is_texts(metadata):
        raise UsageError(
            f"{path} is damaged: its __metadata__ is {shown(metadata)}, and must be texts by name, without which the "
            "safetensors library does not open the file. Download it again"
        )
    return header


def _is_texts(metadata: Any) -> bool:
    return isinstance(metadata, dict) and all(isinstance(v, str) and is_text(k + v) for k, v in metadata.items())


def _stored(path: Path, name: str, value: Any, data_start: int) -> StoredTensor:
    try:
        dtype, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
        whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        if not whole or begin > end or dtype not in ITEM_BITS:
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is damaged: its header describes {name} as {shown(value)}. Download it again"
        ) from error
    expected = prod(shape) * ITEM_BITS[dtype] // 8
    if end - begin != expected:
        raise UsageError(
            f"{path} is damaged: {name} of type {dtype} and shape {shape} needs {expected} bytes, "
            f"and its header gives it {end - begin}. Download it again"
        )
    return StoredTensor(dtype, tuple(shape), data_start + begin, end - begin)


def _check_layout(path: Path, tensors: Mapping[str, StoredTensor], data_start: int, size: int) -> None:
    position, previous = data_start, "the header"
    for name, tensor in tensors.items():
        if tensor.offset != position:
            relation = "overlaps" if tensor.offset < position else "leaves a gap after"
            raise UsageError(f"{path} is damaged: {name} {relation} {previous}. Download it again")
        position, previous = tensor.offset + tensor.length, name
    if position > size:
        raise UsageError(
            f"{path} is truncated: its header calls for {position} bytes and it has {size}. Download it again"
        )
    if position < size:
        raise UsageError(
            f"{path} is damaged: {size - position} bytes follow the last tensor, {previous}. Download it again"
        )
