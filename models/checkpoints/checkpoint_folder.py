"""A model's tensors as a Hugging Face folder, in the names and the layout of its family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockexport.models.checkpoints.fused_tensors import Storage, put_together
from blockexport.models.checkpoints.tensor_spellings import own_name
from blockexport.models.families.every_family import FAMILIES

if TYPE_CHECKING:
    import torch


def write_checkpoint(folder: Path, said: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write `config.json` and `model.safetensors` into a folder that is there, so that transformers opens it too.

    Args:
        folder: which holds neither.
        said: the config, of a family whose checkpoints stack projections part by part, if at all.
        tensors: by the names of `expected_tensors`.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    from safetensors.torch import save

    family = FAMILIES[said["model_type"]]
    stored = put_together(tensors, Storage(family.fused, inputs_first=family.inputs_first))
    named = {own_name(name, family.tensor_names): tensor.contiguous() for name, tensor in stored.items()}
    (folder / "config.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    # Not save_file, which lets nobody but the owner read the file.
    (folder / "model.safetensors").write_bytes(save(named, {"format": "pt"}))
