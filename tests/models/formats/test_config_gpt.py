"""Configs of families with keys or tensors of another form: the count is transformers', and the rest is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from blockexport.bundle_export import export_bundle
from blockexport.models.block.rope import rope_table_rows
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.config.arithmetic import count_parameters
from blockexport.models.errors import UsageError
from blockexport.models.formats.config_hf import config_from_hf
from tests.transformers_models import make_model, save_model

GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 331,
    "n_embd": 48,
    "n_layer": 5,
    "n_head": 6,
    "n_positions": 77,
}

PHI: dict[str, Any] = {
    "model_type": "phi",
    "vocab_size": 331,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
}
NEOX: dict[str, Any] = {
    "model_type": "gpt_neox",
    "vocab_size": 331,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "rotary_pct": 0.5,
    "rotary_emb_base": 5000,
}


@pytest.mark.parametrize(
    "data",
    [
        {**PHI, "qk_layernorm": True},
        {**PHI, "partial_rotary_factor": 0.25, "num_key_value_heads": 2, "embd_pdrop": 0.0},
        NEOX,
        {**NEOX, "attention_bias": False, "use_parallel_residual": False, "tie_word_embeddings": True},
        GPT2,
        {**GPT2, "n_inner": 88, "n_ctx": 77, "activation_function": "gelu", "tie_word_embeddings": False},
        {**GPT2, "n_inner": None, "reorder_and_upcast_attn": True, "summary_type": "cls_index"},
    ],
)
def test_as_many_parameters_as_transformers_counts(data: Mapping[str, Any]) -> None:
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**data))
    config = config_from_hf(data, "config.json")
    assert count_parameters(config).total == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({**GPT2, "hidden_size": 48}, "models of this type call it n_embd"),
        ({**GPT2, "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({**GPT2, "scale_attn_weights": False}, "scale_attn_weights"),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention"),
        ({**GPT2, "rope_theta": 1e4}, "rope_theta is 10000.0.*learned"),
        ({**GPT2, "num_key_value_heads": 2}, "num_key_value_heads is 2"),
        ({**GPT2, "head_dim": 16}, "head_dim is 16.*n_embd / n_head"),
        ({**GPT2, "mlp_bias": False}, "biases in all its projections"),
        ({**GPT2, "n_inner": 0}, "n_inner is 0"),
        ({**NEOX, "rope_theta": 1e4}, "models of this type call it rotary_emb_base"),
        ({**NEOX, "rotary_pct": 0.4}, "rotary_pct is 0.4.*pairs"),
        ({**NEOX, "num_key_value_heads": 3}, "num_key_value_heads is 3"),
        ({**NEOX, "mlp_bias": False}, "mlp_bias"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_key(data: Mapping[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        config_from_hf(data, "config.json")


@pytest.mark.parametrize("family", ["gpt2", "llama-dynamic", "phi3-longrope"])
def test_more_slots_than_one_table_has_are_refused(family: str, tmp_path: Path) -> None:
    save_model(make_model(family, tied=True), tmp_path / "model")
    for beyond in (False, True):
        with pytest.raises(UsageError, match=r"600 is beyond the 512 positions .*Choose at most 512$"):
            export_bundle(
                str(tmp_path / "model"), tmp_path / "bundle", max_sequence_length=600, beyond_trained_range=beyond
            )
    assert not (tmp_path / "bundle").exists()
    with pytest.raises(UsageError, match=r"outside 1\.\.512, the positions "):
        rope_table_rows(open_checkpoint(str(tmp_path / "model")).config, 513)


def test_the_names_of_the_first_checkpoints_are_known(tmp_path: Path) -> None:
    """No `transformer.` in front, and the masks as tensors."""
    model = save_model(make_model("gpt2", tied=True), tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    early = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    early |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 512, 512).tril() for layer in range(2)}
    early |= {f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(2)}
    save_file(early, tmp_path / "model" / "model.safetensors")
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    fused = model.transformer.h[1].attn.c_attn
    for part, name in enumerate("qkv"):
        rows = slice(96 * part, 96 * (part + 1))
        attention = f"model.layers.1.self_attn.{name}_proj"
        assert torch.equal(checkpoint.read(f"{attention}.weight"), fused.weight.T[rows])
        assert torch.equal(checkpoint.read(f"{attention}.bias"), fused.bias[rows])


def test_q_k_and_v_are_taken_out_of_each_head(tmp_path: Path) -> None:
    """By GPT-NeoX's own names, with the masks and frequencies that it once saved."""
    model = save_model(make_model("gpt_neox"), tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    early = {name.replace("lm_head.", "embed_out."): tensor for name, tensor in stored.items()}
    early |= {f"gpt_neox.layers.{layer}.attention.bias": torch.ones(1, 1, 512, 512) for layer in range(2)}
    early |= {f"gpt_neox.layers.{layer}.attention.rotary_emb.inv_freq": torch.ones(2) for layer in range(2)}
    save_file(early, tmp_path / "model" / "model.safetensors")
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    fused = model.gpt_neox.layers[1].attention.query_key_value
    for part, name in enumerate("qkv"):
        rows = [48 * head + 16 * part + row for head in range(6) for row in range(16)]
        attention = f"model.layers.1.self_attn.{name}_proj"
        assert torch.equal(checkpoint.read(f"{attention}.weight"), fused.weight[rows])
        assert torch.equal(checkpoint.read(f"{attention}.bias"), fused.bias[rows])
