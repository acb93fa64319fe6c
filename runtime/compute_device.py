"""Where a decoder computes: on the processor, or on one CUDA GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockexport.models.errors import UsageError

if TYPE_CHECKING:
    import torch

CPU_NAME, CUDA_NAME = "cpu", "cuda"
FORM = f"{CPU_NAME}|{CUDA_NAME}[:N]"


@dataclass(frozen=True)
class ComputeDevice:
    """`cpu`, or `cuda` with the number of a GPU."""

    kind: str = CPU_NAME
    index: int = 0

    @classmethod
    def named(cls, name: str) -> ComputeDevice:
        """What `--device` calls so, and that is there.

        Raises:
            UsageError: it is no device, or not on this machine, with what PyTorch sees there.
        """
        found = re.fullmatch(f"({CPU_NAME}|{CUDA_NAME})(?::([0-9]{{1,3}}))?", name)
        if found is None or (found[1] == CPU_NAME and found[2]):
            raise UsageError(f"--device {name!r} is no device: give {CPU_NAME}, {CUDA_NAME} or {CUDA_NAME}:N")
        device = cls(found[1], int(found[2] or 0))
        if device.on_gpu:
            device._require()
        return device

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.on_gpu else self.kind

    @property
    def on_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.kind == CUDA_NAME

    @property
    def torch(self) -> torch.device:
        """Of tensors that lie there."""
        import torch

        return torch.device(self.kind, self.index) if self.on_gpu else torch.device(self.kind)

    def synchronize(self) -> None:
        """Wait for what PyTorch has begun there: other libraries do not wait for it."""
        if self.torch.type == CUDA_NAME:
            import torch

            torch.cuda.synchronize(self.torch)

    def _require(self) -> None:
        import torch

        reason = gpu_missing()
        if reason is not None:
            raise UsageError(
                f"--device {self}: there is no GPU that torch can use ({reason}). Leave out --device, or see what "
                "`blockexport doctor` says"
            )
        count = torch.cuda.device_count()
        if self.index >= count:
            raise UsageError(f"--device {self} is not there: this machine has {count} of them, from {CUDA_NAME}:0 on")


CPU = ComputeDevice()


def gpu_missing() -> str | None:
    """Why PyTorch has no GPU; None where it has one."""
    import torch

    if torch.cuda.is_available():
        return None
    return f"torch is a CUDA {torch.version.cuda} build" if torch.version.cuda else "torch is a CPU build"
