"""The RoPE tables as a file of their own beside the weights, so that a checkpoint's file can stay as it is."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save

from blockexport.models.config import ModelConfig
from blockexport.models.rope import rope_table

ROPE_FILE = "rope.safetensors"
COS, SIN = "cos", "sin"


def write_rope_file(folder: Path, config: ModelConfig, rows: int) -> None:
    """Write `cos` and `sin`, float32 [rows, H/2] each."""
    cos, sin = rope_table(config, rows)
    (folder / ROPE_FILE).write_bytes(save({COS: cos, SIN: sin}))
