"""A heap without free pieces: what is allocated next lies in the order it is asked for.

TensorRT for RTX writes some tables of an engine in the order of its objects' addresses. What Python did before (compile
its modules or find them compiled, read a long path or a short one) leaves other free pieces in the heap, and would show
in the engine's bytes.
"""

from __future__ import annotations

import ctypes
import gc

LARGE_PIECE = 100_000  # bytes; above some 128 KiB glibc maps pages of their own
ALIGNMENT = 16
ENOUGH_IN_A_ROW = 4


def settle_memory() -> None:
    """Take every free piece of this process's heap, for good; for a process that ends when its work is done."""
    gc.collect()
    gc.disable()  # what it frees later would be a piece again
    malloc = ctypes.CDLL(None).malloc
    malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    last, in_a_row = 0, 0
    while in_a_row < ENOUGH_IN_A_ROW:  # then they come from the heap's end, behind which nothing is free
        previous, last = last, malloc(LARGE_PIECE)
        in_a_row = in_a_row + 1 if 0 < last - previous < 2 * LARGE_PIECE else 0
    for size in range(LARGE_PIECE, 0, -ALIGNMENT):
        while malloc(size) < last:
            pass
