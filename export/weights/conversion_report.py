"""What happened to the weights' values between the checkpoint and the bundle, in a form to print and to record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blockexport.models.checkpoints.weight_values import TensorLoss


@dataclass(frozen=True)
class ConversionReport:
    """How the weights were written.

    Attributes:
        source_types: the checkpoint's element types, sorted (`F32`, `F16`, `BF16`; a dequantised tensor counts as F32).
        target_type: the bundle's.
        cloned: the checkpoint's files were copied as they are.
        losses: the tensors that lost values, with what they lost. Overflow is refused, so only flushing is left.
    """

    source_types: tuple[str, ...]
    target_type: str
    cloned: bool
    losses: tuple[TensorLoss, ...] = ()

    def notes(self) -> list[str]:
        """Lines for the user; empty when nothing was lost."""
        if not self.losses:
            return []
        count = sum(loss.flushed for loss in self.losses)
        worst = max(self.losses, key=lambda loss: loss.largest_flushed)
        others = f" and {len(self.losses) - 1} other tensors" if len(self.losses) > 1 else ""
        return [
            f"{count} weights are too small for {self.target_type} and became 0, in {worst.name}{others}; "
            f"the largest was {worst.largest_flushed:.3g}"
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, for the manifest."""
        return {
            "source_types": list(self.source_types),
            "target_type": self.target_type,
            "cloned": self.cloned,
            "flushed_to_zero": [_flushed(loss) for loss in self.losses],
        }


def _flushed(loss: TensorLoss) -> dict[str, Any]:
    values = asdict(loss)
    return {"tensor": values["name"], "count": values["flushed"], "largest": values["largest_flushed"]}


def report_of(source_types: Sequence[str], target_type: str, losses: Sequence[TensorLoss]) -> ConversionReport:
    """The report of a conversion, keeping only the tensors that lost something."""
    lost = tuple(loss for loss in losses if loss.flushed)
    return ConversionReport(tuple(sorted(set(source_types))), target_type, cloned=False, losses=lost)
