"""Write one safetensors file as a stream, never holding more than a chunk of it; its data begins on a page.

Format: https://github.com/huggingface/safetensors#format. The library's own writers want all tensors at once.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from blockexport.models.checkpoints.checkpoint import TensorEntry
from blockexport.models.checkpoints.safetensors_header import LENGTH_BYTES
from blockexport.models.element_types import BY_SAFETENSORS

PAGE = 4096
_WAITING_CHUNKS = 2


def byte_size(entry: TensorEntry) -> int:
    """What a tensor takes in a file, in its entry's type."""
    return entry.size * BY_SAFETENSORS[entry.dtype].itemsize


def header_bytes(entries: Mapping[str, TensorEntry]) -> bytes:
    """Length field and JSON, padded to a page.

    Args:
        entries: name, type and shape of what will be written, in the order of the bytes.
    """
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, entry in entries.items():
        end = position + byte_size(entry)
        described[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    start = -(-(LENGTH_BYTES + len(text)) // PAGE) * PAGE
    return (start - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "little") + text.ljust(start - LENGTH_BYTES)


class HashingWriter:
    """A file that is hashed while it is written, on a thread beside the one that makes the data."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._hash = hashlib.sha256()
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=kind is not None)
        self._file.close()

    def write(self, data: bytes | memoryview) -> None:
        """Queue `data`, which must not change any more; waits while enough is queued. Raises what earlier ones did."""
        self._waiting.append(self._thread.submit(self._write, data))
        while len(self._waiting) > _WAITING_CHUNKS:
            self._waiting.popleft().result()

    def finish(self) -> str:
        """Wait for everything; the hex sha256 of the file."""
        while self._waiting:
            self._waiting.popleft().result()
        self._file.flush()
        return self._hash.hexdigest()

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in memory order, which the tensor must own or map for as long as the view lives."""
    flat: memoryview = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
    return flat
