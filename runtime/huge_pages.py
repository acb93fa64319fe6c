"""Weights in huge pages: a step reads all of them, and in pages of 4 KiB it waits for the page table as well.

The C library's allocator asks for small ones, and a runtime's weights come out of it. So the kernel is asked to move
them, once they are there: `MADV_COLLAPSE`, https://man7.org/linux/man-pages/man2/madvise.2.html. Values and addresses
stay.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_MAPS, _SIZE = Path("/proc/self/maps"), Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_MADV_COLLAPSE = 25  # Linux 6.1

Range = tuple[int, int]
"""Addresses of memory: the first, and the one after the last."""


@contextmanager
def in_huge_pages() -> Iterator[None]:
    """Memory that the process gets in the block, and still has at its end, is moved into huge pages then.

    That takes no longer than the block did, which matters where free memory is in pieces. Does nothing where the system
    cannot: only Linux can, from 6.1 on.
    """
    before, began = _anonymous(), time.monotonic()
    yield
    deadline = 2 * time.monotonic() - began
    if not before or not _SIZE.exists():
        return
    size = int(_SIZE.read_text())
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start, end in without(_anonymous(), before):
        for page in range(-(-start // size) * size, end - size + 1, size):
            if time.monotonic() < deadline:
                madvise(page, size, _MADV_COLLAPSE)


def without(ranges: Sequence[Range], others: Sequence[Range]) -> Iterator[Range]:
    """The parts of `ranges` that lie in none of `others`, which ascend."""
    for start, end in ranges:
        for low, high in others:
            if low < end and start < high:
                yield start, low
                start = high
        yield start, end


def _anonymous() -> list[Range]:
    """Where this process has memory of its own that no file backs, in ascending order."""
    if not _MAPS.exists():
        return []
    # bytes: a mapped file may have any name
    lines = (line.split(maxsplit=5) for line in _MAPS.read_bytes().split(b"\n") if line)
    # address, permissions, offset, device, inode and, where there is one, a name
    found = [line[0].split(b"-") for line in lines if line[1] == b"rw-p" and line[5:] in ([], [b"[heap]"])]
    return [(int(start, 16), int(end, 16)) for start, end in found]
