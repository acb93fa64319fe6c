"""Element types by their safetensors names, in torch, and bytes of a file seen as a tensor."""

from __future__ import annotations

import mmap
from functools import lru_cache
from pathlib import Path

import torch

from blockexport.models.checkpoint import FileSlice
from blockexport.models.errors import UsageError

TORCH_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def tensor_of(location: FileSlice, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The bytes at `location` as a tensor on the CPU, without a copy where the offset is aligned.

    The pages are mapped privately: writing to the tensor never reaches the file.

    Raises:
        UsageError: the file has become unreadable or shorter than `location` says.
    """
    torch_type = TORCH_TYPES[dtype]
    if location.length == 0:
        return torch.empty(shape, dtype=torch_type)
    try:
        size = location.path.stat().st_size
        mapped = _mapped(location.path, size, location.path.stat().st_mtime_ns)
    except (OSError, ValueError) as error:
        raise UsageError(f"{location.path} cannot be read: {error}") from error
    if location.offset + location.length > size:
        raise UsageError(
            f"{location.path} is truncated: a tensor ends at byte {location.offset + location.length} of {size}. "
            "Download it again"
        )
    if location.offset % torch_type.itemsize:
        copied = bytearray(mapped[location.offset : location.offset + location.length])
        return torch.frombuffer(copied, dtype=torch_type).view(shape)
    count = location.length // torch_type.itemsize
    return torch.frombuffer(mapped, dtype=torch_type, count=count, offset=location.offset).view(shape)


@lru_cache(maxsize=4)
def _mapped(path: Path, size: int, modified: int) -> mmap.mmap:
    """The file, mapped once for all its tensors; size and time of change are there to tell a new file from an old."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
