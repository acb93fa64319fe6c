"""Bytes of a file seen as a tensor."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import torch

from blockexport.models.checkpoints.checkpoint import FileSlice, TensorEntry
from blockexport.models.element_types import BY_SAFETENSORS
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import open_regular


def tensor_of(location: FileSlice, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The bytes at `location` as a tensor on the CPU, without a copy where the offset is aligned.

    Its pages are mapped privately, so writing to the tensor never reaches the file, and are given back with it:
    reading a file tensor by tensor never holds more than one.

    Raises:
        UsageError: the file has become unreadable or shorter than `location` says.
    """
    torch_type = BY_SAFETENSORS[dtype].torch_dtype
    if location.length == 0:
        return torch.empty(shape, dtype=torch_type)
    lead = location.offset % mmap.ALLOCATIONGRANULARITY
    try:
        with open_regular(location.path) as file:
            pages = mmap.mmap(
                file.fileno(), lead + location.length, access=mmap.ACCESS_COPY, offset=location.offset - lead
            )
    except (OSError, ValueError) as error:  # ValueError: longer than the file
        raise UsageError(
            f"{location.path} cannot be read up to byte {location.offset + location.length}: {error}"
        ) from error
    if lead % torch_type.itemsize:
        return torch.frombuffer(bytearray(pages[lead:]), dtype=torch_type).view(shape)
    count = location.length // torch_type.itemsize
    return torch.frombuffer(pages, dtype=torch_type, count=count, offset=lead).view(shape)


def strips_of(entry: TensorEntry) -> Iterator[torch.Tensor]:
    """The tensor whose bytes lie at `entry.location` strip by strip, each mapped on its own.

    Raises:
        UsageError: see `tensor_of`.
    """
    place = entry.location
    assert place is not None, entry.name
    row = place.length // max(1, entry.shape[0])
    for rows in entry.rows():
        count = rows.stop - rows.start
        part = FileSlice(place.path, place.offset + rows.start * row, count * row)
        yield tensor_of(part, entry.dtype, (count, *entry.shape[1:]))
