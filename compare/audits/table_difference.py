"""A RoPE table of an artifact against the one that the loader computes for the same config."""

from __future__ import annotations

import torch

from blockexport.compare.core.tolerances import ROPE_UNITS
from blockexport.models.block.rope import inverse_frequencies, rope_table
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.wording import told_apart

_MOST = 0.9  # so large a share of the rows after the first wrong one counts as all of them


def table_problem(found: torch.Tensor, kind: str, config: ModelConfig, slots: int) -> str | None:
    """What is wrong with a table, or None.

    Args:
        found: cosines or sines, [rows, R/2] float32.
        kind: `cos` or `sin`.
        config: what the table should follow from.
        slots: M, the rows it must have at least.
    """
    pairs = config.turned_dims // 2
    if found.ndim != 2 or found.shape[1] != pairs:
        return f"is {list(found.shape)}, and {pairs} pairs a position are wanted"
    rows = len(found)
    if rows < slots:
        return f"has {rows} rows, and the cache {slots} slots"
    wanted = rope_table(config, rows)[0 if kind == "cos" else 1]
    if torch.equal(found, wanted):
        return None
    angles = torch.arange(rows, dtype=torch.float32)[:, None] * inverse_frequencies(config)
    room = ROPE_UNITS.value * torch.finfo(torch.float32).eps * angles.clamp(min=1.0)
    wrong = ~((found - wanted).abs() <= room)
    positions = wrong.any(1).nonzero().flatten().tolist()
    if not positions:
        return None
    first, pair = wrong.nonzero()[0].tolist()
    there, right = told_apart(float(found[first, pair]), float(wanted[first, pair]))
    return f"differs {_where(positions, rows)}: {there} for pair {pair}, wanted {right}"


def _where(positions: list[int], rows: int) -> str:
    first = positions[0]
    if len(positions) == 1:
        return f"at position {first}"
    if positions[-1] == rows - 1 and len(positions) >= _MOST * (rows - first):
        return f"from position {first} on"
    if positions[-1] - first + 1 == len(positions):
        return f"at positions {first} to {positions[-1]}"
    return f"at {len(positions):,} positions, the first {first}"
