"""LoRA adapters written by hand, as peft saves them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.small_models import Weights

PREFIX = "base_model.model."
CONFIG: dict[str, Any] = {  # as peft 0.21 writes it
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": None,
    "base_model_name_or_path": "organisation/base",
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 6,
    "lora_bias": False,
    "lora_dropout": 0.05,
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "monteclora_config": None,
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "r": 4,
    "rank_pattern": {},
    "revision": None,
    "target_modules": ["q_proj", "down_proj"],
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
    "velora_config": None,
}


def low_rank(weights: Mapping[str, torch.Tensor], module: str, rank: int = 4, seed: int = 0) -> Weights:
    """`lora_A` and `lora_B` of a linear layer, in float32."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = weights[f"{module}.weight"].shape
    return {
        f"{PREFIX}{module}.lora_A.weight": torch.randn((rank, columns), generator=generator) * 0.3,
        f"{PREFIX}{module}.lora_B.weight": torch.randn((rows, rank), generator=generator) * 0.3,
    }


def low_ranks(weights: Mapping[str, torch.Tensor], *endings: str) -> Weights:
    """Those of all layers whose names end so."""
    found: Weights = {}
    modules = [name.removesuffix(".weight") for name in weights if name.endswith(tuple(f"{e}.weight" for e in endings))]
    for seed, module in enumerate(modules):
        found |= low_rank(weights, module, seed=seed)
    return found


def write_adapter(folder: Path, tensors: Mapping[str, torch.Tensor], **changes: Any) -> Path:
    """The folder of an adapter, its config with `changes`; a key whose value is `...` is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not ...}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder
