"""Keys and tensors that the files of a family have under two names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.formats.config_hf import config_from_hf
from tests.transformers_models import make_model, save_model

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
NAMES = {
    "model.embed_tokens": "transformer.wte",
    "model.layers": "transformer.h",
    "model.norm": "transformer.ln_f",
    "self_attn.o_proj": "attn.attention.out_proj",
    "self_attn": "attn.attention",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "gate_proj": "c_fc_0",
    "up_proj": "c_fc_1",
    "down_proj": "c_proj",
}
"""Those that transformers gives the tensors of EXAONE 3, and those of its published files."""


@pytest.mark.parametrize(
    ("family", "one", "other"),
    [
        ("internlm3", {"qkv_bias": True, "bias": True}, {"attention_bias": True, "mlp_bias": True}),
        (
            "exaone",
            {"num_layers": 3, "layer_norm_epsilon": 1e-4, "activation_function": "silu"},
            {"num_hidden_layers": 3, "rms_norm_eps": 1e-4, "hidden_act": "silu"},
        ),
    ],
)
def test_a_key_has_one_value_under_both_names(family: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    plain = {"model_type": family, "num_hidden_layers": 3, **SIZES}
    given = {**{key: value for key, value in plain.items() if key not in other}, **one}
    found = config_from_hf(given, "config.json")
    assert (
        found == config_from_hf({**plain, **other}, "config.json") == config_from_hf(plain | one | other, "config.json")
    )
    assert found != config_from_hf({**plain, "num_hidden_layers": 2}, "config.json")
    key, value = next(iter(other.items()))
    with pytest.raises(UsageError, match="which is another name of it, is "):
        config_from_hf({**given, key: not value}, "config.json")


def test_published_names_of_tensors_are_the_same_model(tmp_path: Path) -> None:
    save_model(make_model("exaone"), tmp_path)
    before = open_checkpoint(str(tmp_path))
    expected = {name: before.read(name).clone() for name in before.entries}
    stored = load_file(tmp_path / "model.safetensors")
    renamed = dict[str, torch.Tensor]()
    for name, values in stored.items():
        for usual, own in NAMES.items():
            name = name.replace(usual, own, 1)
        renamed[name] = values
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    after = open_checkpoint(str(tmp_path))
    assert "transformer.h.0.attn.attention.out_proj.weight" in renamed
    assert after.entries.keys() == expected.keys()
    assert all(torch.equal(after.read(name), values) for name, values in expected.items())
