"""The front of a GGUF file: metadata and the table of tensors, with every count checked against the file's size.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package's own reader makes a numpy view
per token (2.3 s for a vocabulary of 49,152) and reads past the end of a truncated file without a word; its tables of
types and its dequantisers are used as they are.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType

from blockexport.models.errors import UsageError
from blockexport.models.regular_file import open_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


@dataclass(frozen=True)
class GgufTensor:
    """One tensor as stored: GGUF name, ggml type, shape with the rows first, and its bytes in the file."""

    name: str
    ggml_type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    length: int


class _Damaged(Exception):
    """What is wrong with the bytes; `read_gguf` adds the file's name."""


class GgufMetadata(Mapping[str, Any]):
    """Metadata by key. Arrays (a vocabulary, its merges) are decoded each time they are asked for, not on opening.

    Raises UsageError from `[]` when a string is not UTF-8.
    """

    def __init__(self, path: Path, data: mmap.mmap, places: Mapping[str, tuple[int, int]]) -> None:
        self._path = path
        self._data = data
        self._places = places  # key -> (value type, where the value begins)

    def __getitem__(self, key: str) -> Any:
        value_type, offset = self._places[key]
        try:
            return _Cursor(self._data, offset).value(value_type)
        except _Damaged as error:
            raise UsageError(f"{self._path} is damaged: {key}: {error}. Download it again") from error

    def __contains__(self, key: object) -> bool:
        return key in self._places  # a mapping's own would decode the value

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def read_gguf(path: Path) -> tuple[GgufMetadata, list[GgufTensor]]:
    """Metadata and tensors of the file at `path`.

    Raises:
        UsageError: the file cannot be read, is not GGUF (versions 2 and 3, little-endian), or is damaged or truncated.
    """
    try:
        with open_regular(path) as file:
            if file.read(4) != MAGIC:
                raise UsageError(f"{path} is not a GGUF file: it does not begin with the four letters GGUF")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return _read(path, data)
    except _Damaged as error:
        raise UsageError(f"{path} is damaged or truncated: {error}. Download it again") from error


def _read(path: Path, data: mmap.mmap) -> tuple[GgufMetadata, list[GgufTensor]]:
    cursor = _Cursor(data, len(MAGIC))
    version = cursor.number("<I")
    if version not in VERSIONS:
        swapped = " (it is big-endian)" if version & 0xFFFF == 0 else ""
        raise UsageError(f"{path} is GGUF version {version}{swapped}; little-endian versions 2 and 3 are read")
    tensor_count, key_count = cursor.number("<Q"), cursor.number("<Q")
    places: dict[str, tuple[int, int]] = {}
    for _ in range(key_count):
        key, value_type = cursor.string(), cursor.number("<I")
        if key in places:
            raise _Damaged(f"its metadata holds {key} twice")
        places[key] = (value_type, cursor.offset)
        cursor.skip(value_type)
    metadata = GgufMetadata(path, data, places)
    described = [cursor.tensor() for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _Damaged(f"general.alignment is {alignment!r}, and must be a power of two")
    start = (cursor.offset + alignment - 1) // alignment * alignment
    return metadata, _placed(described, start, len(data))


def _placed(described: list[GgufTensor], start: int, size: int) -> list[GgufTensor]:
    """The tensors with offsets from the start of the file, checked to be inside it and not to overlap."""
    tensors = [GgufTensor(t.name, t.ggml_type, t.shape, start + t.offset, t.length) for t in described]
    position, previous = start, "the header"
    for tensor in sorted(tensors, key=lambda t: (t.offset, t.length)):
        if tensor.offset < position:
            raise _Damaged(f"{tensor.name} overlaps {previous}")
        position, previous = tensor.offset + tensor.length, tensor.name
        if position > size:
            raise _Damaged(f"{tensor.name} ends at byte {position}, and the file has {size}")
    names = [tensor.name for tensor in tensors]
    if len(set(names)) < len(names):
        raise _Damaged(f"it holds {next(name for name in names if names.count(name) > 1)} twice")
    return tensors


class _Cursor:
    """A place in the bytes that moves past what it reads and never past the end."""

    def __init__(self, data: mmap.mmap, offset: int) -> None:
        self.data = data
        self.size = len(data)
        self.offset = offset

    def advance(self, count: int) -> int:
        """Move on by `count` bytes and return where that began."""
        begin = self.offset
        if count > self.size - begin:
            raise _Damaged(f"it ends at byte {self.size}, in the middle of its header")
        self.offset = begin + count
        return begin

    def number(self, code: str) -> Any:
        return struct.unpack_from(code, self.data, self.advance(struct.calcsize(code)))[0]

    def string(self) -> str:
        begin = self.advance(self.number("<Q"))
        try:
            return self.data[begin : self.offset].decode("utf-8")
        except UnicodeDecodeError as error:
            raise _Damaged(f"the text at byte {begin} is not UTF-8") from error

    def strings(self, count: int) -> list[str]:
        """As `count` times `string`, in a third of the time: a vocabulary and its merges are a hundred thousand."""
        data, offset, last, unpack = self.data, self.offset, self.size - 8, struct.Struct("<Q").unpack_from
        found: list[bytes] = []
        for _ in range(count):
            if offset > last:
                break
            begin = offset + 8
            offset = begin + unpack(data, offset)[0]
            found.append(data[begin:offset])
        try:
            if offset <= self.size and len(found) == count:
                decoded = [one.decode() for one in found]
                self.offset = offset
                return decoded
        except UnicodeDecodeError:
            pass
        return [self.string() for _ in range(count)]  # which says what is wrong, and where

    def array_head(self) -> tuple[int, int]:
        element_type, count = self.number("<I"), self.number("<Q")
        if element_type not in _SCALARS and element_type != _STRING:
            raise _Damaged(f"an array of type {element_type} stands at byte {self.offset}")
        return element_type, count

    def value(self, value_type: int) -> Any:
        """Decode a value of any type; the arrays of the format become lists."""
        if value_type == _STRING:
            return self.string()
        if value_type in _SCALARS:
            return self.number(_SCALARS[value_type])
        if value_type != _ARRAY:
            raise _Damaged(f"a value of the unknown type {value_type} stands at byte {self.offset}")
        element_type, count = self.array_head()
        if element_type == _STRING:
            return self.strings(count)
        code = f"<{count}{_SCALARS[element_type][1]}"
        return list(struct.unpack_from(code, self.data, self.advance(struct.calcsize(code))))

    def skip(self, value_type: int) -> None:
        """Move past a value; strings of an array are stepped over, not decoded."""
        if value_type != _ARRAY:
            self.value(value_type)
            return
        element_type, count = self.array_head()
        if element_type != _STRING:
            self.advance(count * struct.calcsize(_SCALARS[element_type]))
            return
        data, offset, last, unpack = self.data, self.offset, self.size - 8, struct.Struct("<Q").unpack_from
        for _ in range(count):
            if offset > last:
                raise _Damaged(f"it ends at byte {self.size}, in the middle of its header")
            offset += 8 + unpack(data, offset)[0]
        self.advance(offset - self.offset)

    def tensor(self) -> GgufTensor:
        name, dimensions = self.string(), self.number("<I")
        if not 0 < dimensions <= MAX_DIMENSIONS:
            raise _Damaged(f"{name} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible")
        shape = tuple(self.number("<Q") for _ in range(dimensions))[::-1]  # stored with the columns first
        type_number, offset = self.number("<I"), self.number("<Q")
        try:
            ggml_type = GGMLQuantizationType(type_number)
        except ValueError as error:
            raise _Damaged(f"{name} has the type {type_number}, which the gguf package does not know") from error
        block, block_bytes = GGML_QUANT_SIZES[ggml_type]
        if shape[-1] % block:
            raise _Damaged(f"{name} has {shape[-1]} columns, no multiple of {ggml_type.name}'s block of {block}")
        return GgufTensor(name, ggml_type, shape, offset, prod(shape) // block * block_bytes)
