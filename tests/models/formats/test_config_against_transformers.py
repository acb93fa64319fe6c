"""A config.json that can be read in two ways is refused, or read as transformers reads it: the logits are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import save_file

from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import FAMILIES

SLOTS = 48
BASE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 61,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": SLOTS,
    "rope_theta": 1000.0,
    "pad_token_id": None,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
PLAIN = {"rope_type": "default", "rope_theta": 200.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MIXED = ["full_attention", "sliding_attention"]
ALL, NONE = "llama mistral qwen2 qwen3 smollm3", ""

# What is changed (None removes a key), and the families in which that is refused; in the others the logits are equal.
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "as it is": ({}, NONE),
    "a head width of its own": ({"head_dim": 16}, NONE),
    "the old RoPE keys": ({"rope_scaling": {"type": "linear", "factor": 4}}, NONE),
    "theta inside of rope_scaling": ({"rope_theta": None, "rope_scaling": {**LINEAR, "rope_theta": 200.0}}, NONE),
    "theta beside rope_parameters": ({"rope_theta": 200.0, "rope_parameters": LINEAR}, NONE),
    "RoPE said twice": ({"rope_scaling": LINEAR, "rope_parameters": LINEAR}, NONE),
    "RoPE said in two ways": ({"rope_theta": None, "rope_scaling": LINEAR, "rope_parameters": PLAIN}, ALL),
    "a factor without a type": ({"rope_scaling": {"factor": 4.0}}, ALL),
    "no RoPE keys at all": ({"rope_theta": None}, NONE),
    "llama3 without its old length": ({"rope_scaling": LLAMA3}, NONE),
    "llama3 with the length beside": ({"rope_scaling": LLAMA3, "original_max_position_embeddings": 16}, NONE),
    "RoPE per layer type": ({"rope_theta": None, "rope_parameters": {"full_attention": PLAIN}}, ALL),
    "RoPE per layer type, of both": ({"rope_theta": None, "rope_parameters": dict.fromkeys(MIXED, PLAIN)}, ALL),
    "RoPE per layer type not there": ({"rope_theta": None, "rope_parameters": {"sliding_attention": PLAIN}}, ALL),
    "scaling per layer type": ({"rope_scaling": {"full_attention": LINEAR}}, ALL),
    "scaling per layer type, with theta": (
        {"rope_theta": None, "rope_scaling": {"full_attention": {**LINEAR, "rope_theta": 200.0}}},
        ALL,
    ),
    "part of the head rotated": ({"partial_rotary_factor": 0.5}, ALL),
    "part of the head rotated, inside": ({"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}, ALL),
    "a window": ({"sliding_window": 5}, "llama"),
    "a window switched on": (
        {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1},
        "llama mistral",
    ),
    "a window switched off": ({"sliding_window": 5, "use_sliding_window": False}, "llama mistral"),
    "a window by layer": ({"sliding_window": 5, "use_sliding_window": True, "layer_types": MIXED}, "llama mistral"),
    "a window by layer, not switched on": ({"sliding_window": 5, "layer_types": MIXED}, ALL),
    "a window in every layer": (
        {"sliding_window": 5, "layer_types": ["sliding_attention"] * 2, "head_dim": 8},
        "llama qwen2 qwen3 smollm3",
    ),
    "no window": ({"sliding_window": None}, NONE),
    "a layer without RoPE": ({"no_rope_layers": [0, 1]}, "llama mistral qwen2 qwen3"),
    "every layer without RoPE": ({"no_rope_layer_interval": 1}, "llama mistral qwen2 qwen3"),
    "a window in layers without RoPE": (
        {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 5},
        "llama mistral qwen2 qwen3",
    ),
    "biases in attention": ({"attention_bias": True}, "mistral"),
    "no biases in attention": ({"attention_bias": False}, "qwen2"),
    "biases in the MLP": ({"mlp_bias": True}, "mistral qwen2 qwen3"),
    "a tied head": ({"tie_word_embeddings": True}, NONE),
    "an activation under its other name": ({"hidden_act": "swish"}, NONE),
    "not causal": ({"is_causal": False}, ALL),
    "seeing both sides": ({"use_bidirectional_attention": True}, ALL),
    "neighbouring pairs": ({"rope_interleaved": True}, ALL),
    "another architecture's name": ({"architectures": ["GemmaForCausalLM"]}, NONE),
    "a multiplier": ({"attention_multiplier": 0.1}, ALL),
}


def write_model(folder: Path, family: str, changes: dict[str, Any]) -> Any:
    """A folder with this config.json and weights for the model that transformers builds from it; the model, or None
    where transformers stops."""
    keys = FAMILIES[family].keys
    data = {"model_type": family, **{keys.get(key, key): value for key, value in BASE.items()}, **changes}
    data = {key: value for key, value in data.items() if value is not None or key in ("sliding_window", "pad_token_id")}
    (folder / "config.json").write_text(json.dumps(data))
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_config(config).float().eval().requires_grad_(False)
    except (KeyError, TypeError):
        return None
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.copy_(torch.rand(parameter.shape, generator=generator) * 1.5 + 0.25)
        else:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    save_file({name: value.detach().clone() for name, value in model.named_parameters()}, folder / "model.safetensors")
    return model


def assert_same_logits(folder: Path, theirs: Any) -> None:
    ids_BS = torch.randint(0, 61, (1, SLOTS), generator=torch.Generator().manual_seed(3))
    checkpoint = open_checkpoint(str(folder))
    past = empty_cache(checkpoint.config, 1, SLOTS, torch.float32)
    logits = load_model(checkpoint, torch.float32, SLOTS)(ids_BS, torch.arange(SLOTS)[None], past)[0]
    expected = theirs(ids_BS).logits
    assert expected.std() > 0.1, "a model whose logits are all alike proves nothing"
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ALL.split())
@pytest.mark.parametrize("form", FORMS)
def test_the_logits_are_transformers_or_the_config_is_refused(form: str, family: str, tmp_path: Path) -> None:
    changes, refusing = FORMS[form]
    theirs = write_model(tmp_path, family, changes)
    if family in refusing.split():
        with pytest.raises(UsageError):
            open_checkpoint(str(tmp_path))
        return
    assert_same_logits(tmp_path, theirs)


NEWER = "gemma gemma2 gemma3_text granite ministral olmo2 olmo3 phi3 seed_oss"
MORE_FORMS: dict[str, dict[str, Any]] = {
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "yarn, with its factor": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3}},
    "longrope": {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    "another activation": {"hidden_act": "gelu"},
    "another activation under the newer key": {"hidden_activation": "silu"},
    "an unknown activation": {"hidden_act": "relu", "hidden_activation": "relu"},
    "a scale of attention": {"query_pre_attn_scalar": 50},
    "a cap on scores": {"attn_logit_softcapping": 2.0},
    "a cap on logits": {"final_logit_softcapping": 2.0},
    "no caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "multipliers": {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    "a base of its own for windows": {"rope_local_base_freq": 30.0},
    "a base for each type of layer": {
        "rope_theta": None,
        "rope_parameters": {"full_attention": PLAIN, "sliding_attention": {**PLAIN, "rope_theta": 30.0}},
    },
    "a pattern of windows": {"sliding_window": 5, "sliding_window_pattern": 2},
    "a window in one layer": {"sliding_window": 5, "layer_types": MIXED},
    "a bias of o alone": {"attention_bias": False, "attention_out_bias": True},
}


SAMPLED = [*NEWER.split(), "exaone4"]
MORE = (
    "arcee cohere2 exaone glm glm4 helium hunyuan_v1_dense hyperclovax internlm3 iquestcoder jais2 ministral3 "
    "vaultgemma"
)


@pytest.mark.parametrize(
    "family", [*NEWER.split(), "exaone4", *(pytest.param(name, marks=pytest.mark.full) for name in MORE.split())]
)
def test_newer_families_give_the_logits_of_transformers_or_refuse(family: str, tmp_path: Path) -> None:
    """Which it is, is left open: what counts is that nothing is silently wrong, and that most is right."""
    right = list[str]()
    forms = {**{name: changes for name, (changes, _) in FORMS.items()}, **MORE_FORMS}
    for number, (form, changes) in enumerate(forms.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            theirs = write_model(folder, family, {"head_dim": 8, **changes})
            _ = theirs is None or theirs(torch.zeros(1, 1, dtype=torch.int64))
        except (RuntimeError, TypeError, ValueError, ZeroDivisionError, StrictDataclassError):
            continue  # transformers refuses it, or stops
        try:
            open_checkpoint(str(folder))
        except UsageError:
            continue
        assert theirs is not None, f"{form}: transformers stops"
        right.append(form)
        assert_same_logits(folder, theirs)
    assert {"as it is", "a tied head", "the old RoPE keys"} - set(right) <= {"the old RoPE keys"} and len(right) > 10
