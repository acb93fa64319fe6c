"""VaultGemma: Gemma 2 without the norms after the sublayers."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.gemma2 import GEMMA2


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(GEMMA2.completed(config), norm_placement="pre")


VAULT_GEMMA = replace(
    GEMMA2,
    model_type="vaultgemma",
    class_name="VaultGemmaForCausalLM",
    tensor_names={"pre_feedforward_layernorm": "post_attention_layernorm"},
    completed=_completed,
    gguf=None,
    presets={},
)
