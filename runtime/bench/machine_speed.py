"""What this machine does at most: bytes read from memory, and operations in a product of matrices, per second."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from blockexport.models.element_types import BY_NAME
from blockexport.models.roofline import MachineSpeed
from blockexport.runtime.threads import use_threads

BYTES = 1 << 29  # of the two vectors together: many times any cache
SIZE = 2048  # rows and columns of the matrices
REPEATS = 5


def measure_speed(device: str, threads: int, dtype: str) -> MachineSpeed:
    """Both figures, each the best of a few runs after a first: what disturbs one makes it smaller.

    Memory is read by a dot product of two long vectors, which does next to no arithmetic; on a GPU the one is copied
    into the other, which reads the half and writes the half. On a processor matrices are
    float32, in which it computes half precision too; elsewhere they are of type `dtype`.
    """
    use_threads(threads)
    element = BY_NAME["float32" if device == "cpu" else dtype]
    x, y = (torch.ones(BYTES // 8, dtype=torch.float32, device=device) for _ in range(2))
    reading = _best((lambda: torch.dot(x, y)) if device == "cpu" else (lambda: y.copy_(x)), device)
    a, b = (torch.ones(SIZE, SIZE, dtype=element.torch_dtype, device=device) for _ in range(2))
    multiplying = _best(lambda: torch.mm(a, b), device)
    return MachineSpeed(device, BYTES / reading, 2 * SIZE**3 / multiplying, element.name)


def _best(work: Callable[[], torch.Tensor], device: str) -> float:
    """The least seconds of several runs."""
    seconds = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
