"""The three floating-point types a bundle can be written in, and their names in each library."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from blockexport.models.errors import NotJudgedError

if TYPE_CHECKING:
    import torch


class Precision(StrEnum):
    """The type of weights, activations and cache. Norm statistics and RoPE stay in float32 whatever it is."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def dtype_name(self) -> str:
        """The name torch, Hugging Face configs and manifests use: `float32`, `float16` or `bfloat16`."""
        return {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[self.value]

    @property
    def safetensors_name(self) -> str:
        """The type's name in a safetensors header."""
        return {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}[self.value]

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return 4 if self is Precision.FP32 else 2

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch type (imports torch)."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype_name)
        return dtype

    @classmethod
    def of(cls, dtype: torch.dtype) -> Precision:
        """The precision whose torch type is `dtype`.

        Raises:
            NotJudgedError: it is none of those that a bundle can be written in, so none that can be judged.
        """
        for precision in cls:
            if precision.torch_dtype == dtype:
                return precision
        raise NotJudgedError(f"no artifact of type {dtype} can be judged: there are {', '.join(cls)}")
