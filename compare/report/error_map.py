"""The picture of what quantising did to each matrix, in report.html: kinds of matrices against layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blockexport.compare.core.matrix_cost import KindCost, MatrixError

SHADES = 5
NONE = "none"  # the column of what belongs to no layer


@dataclass(frozen=True)
class Shaded:
    """A matrix: how dark it is drawn, from 1 on, and what is said of it."""

    shade: int
    title: str


@dataclass(frozen=True)
class ErrorMap:
    """Every quantised matrix.

    Attributes:
        legend: of each shade the errors that it stands for.
        columns: the layers, and at the end what belongs to none.
        rows: of each kind its matrices; None where a layer has no such one.
    """

    legend: list[str]
    columns: list[str]
    rows: list[tuple[str, list[Shaded | None]]]


def error_map(kinds: Sequence[KindCost]) -> ErrorMap | None:
    """The picture of some matrices; None where there are none."""
    errors = [one for kind in kinds for one in kind.errors]
    if not errors:
        return None
    low, high = min(one.error for one in errors), max(one.error for one in errors)
    step = (high - low) / SHADES or 1.0
    layers: list[int | None] = list(range(1 + max((one.layer for one in errors if one.layer is not None), default=-1)))
    if any(one.layer is None for one in errors):
        layers.append(None)
    return ErrorMap(
        [f"{low + i * step:.2%} to {low + (i + 1) * step:.2%}" for i in range(SHADES)],
        [NONE if layer is None else str(layer) for layer in layers],
        [(kind.kind, [_shaded(kind, layer, low, step) for layer in layers]) for kind in kinds],
    )


def _shaded(kind: KindCost, layer: int | None, low: float, step: float) -> Shaded | None:
    found: MatrixError | None = next((one for one in kind.errors if one.layer == layer), None)
    if found is None:
        return None
    where = "" if layer is None else f", layer {layer}"
    return Shaded(min(1 + int((found.error - low) / step), SHADES), f"{kind.kind}{where}: {found.error:.2%}")
