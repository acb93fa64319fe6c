"""The RoPE tables as a file of their own beside the weights, so that a checkpoint's file can stay as it is."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save

from blockexport.models.block.rope import rope_table
from blockexport.models.config.model_config import ModelConfig

ROPE_FILE = "rope.safetensors"
COS, SIN = "cos", "sin"


def write_rope_file(folder: Path, config: ModelConfig, rows: int) -> None:
    """Write `cos` and `sin`, float32 [rows, H/2] each."""
    cos, sin = rope_table(config, rows)
    (folder / ROPE_FILE).write_bytes(save({COS: cos, SIN: sin}))
