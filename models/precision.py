"""The three floating-point types a bundle can be written in."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from blockexport.models.element_types import ELEMENT_TYPES, ElementType
from blockexport.models.errors import NotJudgedError, UsageError

if TYPE_CHECKING:
    import torch


class Precision(StrEnum):
    """The type of weights, activations and cache. Norm statistics and RoPE stay in float32 whatever it is."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def element(self) -> ElementType:
        """The element type, with its names in each library."""
        return next(one for one in ELEMENT_TYPES if one.precision == self)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch type (imports torch)."""
        return self.element.torch_dtype

    @classmethod
    def named(cls, name: Precision | str) -> Precision:
        """The precision that a caller calls so.

        Raises:
            UsageError: there is none of that name.
        """
        if name not in list(cls):
            raise UsageError(f"no precision {str(name)!r}: there are {', '.join(cls)}")
        return cls(name)

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
