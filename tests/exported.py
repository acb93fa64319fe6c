"""A small model exported to a folder, the way `blockexport onnx` does it, for tests that run or mutate the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from blockexport.export.bundle.file_check import file_entry
from blockexport.export.bundle.manifest import PT2_FILE, Manifest, read_manifest, write_manifest
from blockexport.export.onnx_export import export_onnx
from blockexport.export.pt2 import write_pt2
from blockexport.models.attention_forms import AttentionForms
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.interface import Ends, Interface
from blockexport.models.precision import Precision
from blockexport.models.quantisation import Quantisation

EVERYTHING = ModelConfig(
    "qwen3",
    vocab_size=101,
    hidden_size=24,
    intermediate_size=44,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    qk_norm=True,
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
    sliding_window=7,
    layer_types=("full_attention", "sliding_attention", "full_attention"),
    bos_token_id=1,
    eos_token_ids=(2,),
)
"""Every option of the block at once, every dimension different."""

PARALLEL: dict[str, Any] = {
    "norm": "layer_norm",
    "norm_bias": True,
    "residual": "parallel",
    "rotary_dim": 6,
    "rope_interleaved": True,
    "gated_mlp": False,
    "head_bias": True,
    "hidden_act": "relu2",
}
"""The options of GPT-NeoX's descendants, to be put in the place of those of `EVERYTHING`."""


def random_model(**changes: Any) -> RandomCheckpoint:
    """Weights of standard deviation 0.2 for `EVERYTHING` with `changes`."""
    return RandomCheckpoint(replace(EVERYTHING, **changes), seed=5, reference="tests", std=0.2)


class Gainful(RandomCheckpoint):
    """Random weights with norm gains between 0.25 and 1.75."""

    def read(self, name: str) -> torch.Tensor:
        values = super().read(name)
        middle = 0.0 if self.config.norm_gain_offset else 1.0
        return (values - middle) * 3 + middle if name.endswith("norm.weight") else values


def gainful(config: ModelConfig, seed: int = 5) -> Gainful:
    """Weights of standard deviation 0.2 for a config, with gains that make a wrong norm show."""
    return Gainful(config, seed=seed, reference="tests", std=0.2)


def export(
    checkpoint: Checkpoint,
    folder: Path,
    precision: Precision = Precision.FP32,
    slots: int = 29,
    **options: Any,
) -> Manifest:
    """A sealed bundle with M = `slots`; `options` are `ends` or those of `Ends.of`, `quantisation` and `attention`."""
    quantisation: Quantisation | None = options.pop("quantisation", None)
    attention = options.pop("attention", AttentionForms.MASKED)
    folder.mkdir(parents=True, exist_ok=True)
    interface = Interface(checkpoint.config, precision.element, slots, options.pop("ends", None) or Ends.of(**options))
    manifest = export_onnx(checkpoint, folder, interface, quantisation=quantisation, attention=attention)
    write_manifest(folder, manifest)
    return manifest


def add_program(checkpoint: Checkpoint, interface: Interface, folder: Path) -> None:
    """Write model.pt2 into an exported folder, listed in its manifest: what is not is not opened."""
    write_pt2(checkpoint, interface, folder)
    list_file(folder, PT2_FILE)


def list_file(folder: Path, name: str) -> None:
    """Enter a file as it is now into the manifest."""
    manifest = read_manifest(folder)
    write_manifest(folder, replace(manifest, files={**manifest.files, name: file_entry(folder / name)}))
