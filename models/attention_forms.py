"""In which forms a bundle says what its attention may see."""

from __future__ import annotations

from enum import StrEnum

from blockexport.models.errors import UsageError


class AttentionForms(StrEnum):
    """A mask, which everything reads; the number of slots that count, which ONNX Runtime's fastest CUDA kernel wants;
    or a graph of each over the same weights."""

    MASKED = "masked"
    NONPAD = "nonpad"
    BOTH = "both"

    @classmethod
    def named(cls, name: AttentionForms | str) -> AttentionForms:
        """The forms that a caller calls so.

        Raises:
            UsageError: there are none of that name.
        """
        if name not in list(cls):
            raise UsageError(f"no attention {str(name)!r}: there are {', '.join(cls)}")
        return cls(name)
