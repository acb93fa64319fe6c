"""What happened to the weights' values between the checkpoint and the bundle, in a form to print and to record."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blockexport.models.checkpoints.checkpoint import TensorEntry
from blockexport.models.checkpoints.weight_values import TensorLoss
from blockexport.models.wording import listed, size


@dataclass(frozen=True)
class ConversionReport:
    """How the weights were written.

    Attributes:
        source_types: the checkpoint's element types, sorted, by the names of its format (`F32`, `BF16`, `Q4_K`).
        target_type: the bundle's.
        cloned: the checkpoint's files were copied as they are.
        dequantised: how many tensors were stored in each quantised type.
        source_bytes: of the checkpoint's weight files.
        target_bytes: of the bundle's.
        losses: the tensors that lost values, with what they lost. Overflow is refused, so only flushing is left.
        quantisation_errors: of each matrix that was quantised, the rms of what its values lost over their own rms.
        taken_over: the checkpoint's kind of each matrix whose codes are in the bundle as they are.
        twice: the checkpoint's kind of each matrix that was quantised there otherwise than it is here.
        could_be_taken_over: by bits, how many matrices have codes that a quantised bundle could have as they are.
    """

    source_types: tuple[str, ...]
    target_type: str
    cloned: bool
    dequantised: Mapping[str, int] = field(default_factory=dict)
    source_bytes: int = 0
    target_bytes: int = 0
    losses: tuple[TensorLoss, ...] = ()
    quantisation_errors: Mapping[str, float] = field(default_factory=dict)
    taken_over: Mapping[str, str] = field(default_factory=dict)
    twice: Mapping[str, str] = field(default_factory=dict)
    could_be_taken_over: Mapping[int, int] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Lines for the user; empty when nothing was lost and nothing grew."""
        return [*self._growth(), *self._quantised(), *self._flushes()]

    def _quantised(self) -> list[str]:
        errors, lines = self.quantisation_errors, []
        if self.taken_over:
            lines.append(
                f"{len(self.taken_over)} matrices are the checkpoint's, code by code and scale by scale "
                f"({_kinds(self.taken_over.values())}): they lost nothing more"
            )
        if errors:
            worst = max(errors, key=lambda name: errors[name])
            lines.append(
                f"{len(errors)} matrices were quantised, {size(self.target_bytes)} of weights in all; their "
                f"values lost {statistics.median(errors.values()):.2%} of their size (rms, the median of the "
                f"matrices), those of {worst} most, {errors[worst]:.2%}"
            )
        if self.twice:
            lines.append(
                f"the checkpoint stores {listed(list(self.twice))} quantised in another way "
                f"({_kinds(self.twice.values())}), which were dequantised and quantised a second time"
            )
        return lines

    def _growth(self) -> list[str]:
        if not self.dequantised or self.quantisation_errors or self.taken_over:
            return []
        halved = " (half of that with --fp16 or --bf16)" if self.target_type == "F32" else ""
        kinds = _kinds(Counter(self.dequantised).elements())
        return [
            f"the checkpoint stores weights quantised ({kinds}; {size(self.source_bytes)}) and the bundle "
            f"has all of them in {self.target_type}, {size(self.target_bytes)}{halved}{self._as_they_are()}"
        ]

    def _as_they_are(self) -> str:
        if not self.could_be_taken_over:
            return ""
        bits, count = max(self.could_be_taken_over), sum(self.could_be_taken_over.values())
        return f"; --quantize int{bits} takes {count} of them over as they are"

    def _flushes(self) -> list[str]:
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
            "flushed_to_zero": [
                {"tensor": loss.name, "count": loss.flushed, "largest": loss.largest_flushed} for loss in self.losses
            ],
            **({"quantisation_errors": dict(self.quantisation_errors)} if self.quantisation_errors else {}),
            **({"taken_over": dict(self.taken_over)} if self.taken_over else {}),
        }


def _kinds(kinds: Iterable[str]) -> str:
    return ", ".join(f"{count} in {kind}" for kind, count in sorted(Counter(kinds).items()))


def report_of(
    entries: Iterable[TensorEntry],
    target_type: str,
    losses: Iterable[TensorLoss],
    source_bytes: int,
    target_bytes: int,
    quantisation_errors: Mapping[str, float] | None = None,
    taken_over: Collection[str] = (),
) -> ConversionReport:
    """The report of a conversion of `entries`, keeping only the tensors that lost something."""
    kept = list(entries)
    errors = quantisation_errors or {}
    kinds = {entry.name: entry.stored_type for entry in kept if entry.stored_type}
    return ConversionReport(
        tuple(sorted({entry.stored_type or entry.dtype for entry in kept})),
        target_type,
        cloned=False,
        dequantised=dict(sorted(Counter(entry.stored_type for entry in kept if entry.stored_type).items())),
        source_bytes=source_bytes,
        target_bytes=target_bytes,
        losses=tuple(loss for loss in losses if loss.flushed),
        quantisation_errors=errors,
        taken_over={name: kind for name, kind in kinds.items() if name in taken_over},
        twice={name: kind for name, kind in kinds.items() if name in errors},
        could_be_taken_over=Counter(entry.codes.bits for entry in kept if entry.codes is not None),
    )
