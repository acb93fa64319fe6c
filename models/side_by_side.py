"""Projections that read the same input: a quantised bundle has their codes side by side, as one matrix.

One product then takes the place of two or three, and the input is rounded once for all of them. Blocks lie along the
inputs, so that no code and no scale is another one for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

JOINED = {
    "self_attn.qkv_proj.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "mlp.gate_up_proj.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
}
"""What a layer's matrices are called where they lie side by side, and which they are, in their order."""


@dataclass(frozen=True)
class SideBySide:
    """Some matrices as one.

    Attributes:
        name: what they are called together.
        outputs: of each, by its name, in the order in which they lie.
    """

    name: str
    outputs: Mapping[str, int]

    def columns(self, name: str) -> slice:
        """Those of the matrix `name`."""
        names = list(self.outputs)
        start = sum(self.outputs[other] for other in names[: names.index(name)])
        return slice(start, start + self.outputs[name])


def side_by_side(name: str, outputs: Mapping[str, int]) -> SideBySide | None:
    """Those that a matrix is with where they are joined; None where it is always by itself,
    or the model lacks one of the others.

    Args:
        name: of the matrix.
        outputs: of each matrix of the model, by its name.
    """
    for together, parts in JOINED.items():
        for part in parts:
            prefix = name.removesuffix(part)
            if prefix != name and all(prefix + one in outputs for one in parts):
                return SideBySide(prefix + together, {prefix + one: outputs[prefix + one] for one in parts})
    return None
