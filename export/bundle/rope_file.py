"""The RoPE tables as a file of their own beside the weights, so that a checkpoint's file can stay as it is."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save

from blockexport.models.block.rope import named_tables
from blockexport.models.config.model_config import ModelConfig

ROPE_FILE = "rope.safetensors"


def write_rope_file(folder: Path, config: ModelConfig, rows: int) -> None:
    """Write the cosines and sines, float32 [rows, H/2] each, under `table_names`; none where no layer has RoPE."""
    turns = any(config.has_rope(layer) for layer in range(config.num_hidden_layers))
    tables = named_tables(config, rows).items() if turns else ()
    named = {name: table for names, pair in tables for name, table in zip(names, pair, strict=True)}
    (folder / ROPE_FILE).write_bytes(save(named))
