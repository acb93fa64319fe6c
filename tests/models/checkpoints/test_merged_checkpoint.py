"""A LoRA adapter is merged by the papers' formulas, written out here, and refused by name where it does not fit."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport.models.checkpoints.checkpoint import STRIP, Checkpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from tests.lora_folders import PREFIX, low_rank, low_ranks, write_adapter
from tests.small_models import Weights, small_config, small_weights, write_folder

CONFIG = small_config("qwen2")
WEIGHTS = small_weights(CONFIG)
QUERY = "model.layers.1.self_attn.q_proj"
TENSORS = low_ranks(WEIGHTS, "q_proj", "down_proj")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("base") / "other", CONFIG, WEIGHTS)


def merged(base: Path, folder: Path, tensors: Weights = TENSORS, **changes: Any) -> Checkpoint:
    return open_checkpoint(str(base), lora=write_adapter(folder, tensors, **changes))


def product(tensors: Weights, module: str) -> torch.Tensor:
    up, down = (tensors[f"{PREFIX}{module}.lora_{part}.weight"].double() for part in "BA")
    rows = [sum(up[i, k] * down[k] for k in range(len(down))) for i in range(len(up))]
    return torch.stack([row for row in rows if isinstance(row, torch.Tensor)])


@pytest.mark.parametrize(
    ("changes", "scaling"),
    [
        ({}, 6 / 4),
        ({"use_rslora": True}, 6 / 2),
        ({"alpha_pattern": {"down_proj": 9, r"1\.self_attn\.q_proj": 10}}, 10 / 4),
        ({"alpha_pattern": {"proj": 9}}, 6 / 4),
        ({"fan_in_fan_out": True}, 6 / 4),
    ],
)
def test_a_matrix_gets_the_scaled_product(base: Path, tmp_path: Path, changes: Any, scaling: float) -> None:
    checkpoint = merged(base, tmp_path, **changes)
    wanted = WEIGHTS[f"{QUERY}.weight"].double() + scaling * product(TENSORS, QUERY)
    assert checkpoint.entries[f"{QUERY}.weight"].dtype == "F32"
    torch.testing.assert_close(checkpoint.read(f"{QUERY}.weight"), wanted.float(), rtol=2**-23, atol=0)
    untouched = "model.layers.1.self_attn.k_proj.weight"
    assert torch.equal(checkpoint.read(untouched), WEIGHTS[untouched])


def test_dora_gives_each_output_its_magnitude(base: Path, tmp_path: Path) -> None:
    tensors = {**low_rank(WEIGHTS, QUERY)}
    magnitude = torch.linspace(0.5, 3, len(WEIGHTS[f"{QUERY}.weight"]))
    tensors[f"{PREFIX}{QUERY}.lora_magnitude_vector"] = magnitude
    checkpoint = merged(base, tmp_path, tensors, use_dora=True, target_modules=[QUERY])
    found = checkpoint.read(f"{QUERY}.weight").double()
    direction = WEIGHTS[f"{QUERY}.weight"].double() + 1.5 * product(tensors, QUERY)
    for row, wanted, length in zip(found, direction, magnitude.tolist(), strict=True):
        assert math.isclose(row.norm().item(), length, rel_tol=1e-6)
        assert math.isclose(torch.dot(row, wanted).item(), row.norm().item() * wanted.norm().item(), rel_tol=1e-6)


def test_an_embedding_gets_the_transpose(base: Path, tmp_path: Path) -> None:
    down, up = torch.randn(4, CONFIG.vocab_size), torch.randn(CONFIG.hidden_size, 4)
    name = f"{PREFIX}model.embed_tokens.lora_embedding_"
    checkpoint = merged(base, tmp_path, {f"{name}A": down, f"{name}B": up}, target_modules=["embed_tokens"])
    wanted = WEIGHTS["model.embed_tokens.weight"].double()
    for token in range(CONFIG.vocab_size):
        wanted[token] += 1.5 * sum(up[:, k].double() * down[k, token].double() for k in range(4))
    torch.testing.assert_close(checkpoint.read("model.embed_tokens.weight"), wanted.float(), rtol=1e-6, atol=1e-7)


def test_all_linear_layers_are_those_of_the_blocks(base: Path, tmp_path: Path) -> None:
    endings = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    checkpoint = merged(base, tmp_path, low_ranks(WEIGHTS, *endings), target_modules="all-linear")
    changed = [name for name in WEIGHTS if not torch.equal(checkpoint.read(name), WEIGHTS[name])]
    assert changed == [name for name in WEIGHTS if name.endswith("proj.weight")] and len(changed) == 21


def test_strips_are_the_whole(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = merged(base, tmp_path)
    name = f"{QUERY}.weight"
    whole = checkpoint.read(name)
    monkeypatch.setattr("blockexport.models.checkpoints.checkpoint.STRIP", 7 * whole.shape[1])
    strips = list(checkpoint.strips(name))
    assert whole.numel() < STRIP and [len(strip) for strip in strips] == [7] * 8 + [4]
    assert torch.equal(torch.cat(strips), whole)


LAST = f"{PREFIX}model.layers.2.mlp.down_proj"
WRONG: dict[str, tuple[Weights, dict[str, Any], list[str]]] = {
    "a missing tensor": (
        {name: value for name, value in TENSORS.items() if name != f"{LAST}.lora_B.weight"},
        {},
        [f"lacks the tensor {LAST}.lora_B.weight", "organisation/base"],
    ),
    "a layer too many": (
        {**TENSORS, f"{PREFIX}model.layers.3.mlp.down_proj.lora_A.weight": torch.ones(4, 80)},
        {},
        ["holds the tensor", "layers.3.mlp.down_proj.lora_A.weight", "another model"],
    ),
    "a module that is not named": (TENSORS, {"target_modules": ["q_proj"]}, ["holds 6 tensors", "down_proj.lora_A"]),
    "a bias that is not said": (
        {**TENSORS, f"{PREFIX}{QUERY}.lora_B.bias": torch.ones(60)},
        {},
        ["holds the tensor", f"{QUERY}.lora_B.bias"],
    ),
    "a magnitude that is not said": (
        {**TENSORS, f"{PREFIX}{QUERY}.lora_magnitude_vector": torch.ones(60)},
        {},
        ["holds the tensor", f"{QUERY}.lora_magnitude_vector"],
    ),
    "stacked projections": (
        {f"{PREFIX}model.layers.0.self_attn.qkv_proj.lora_A.weight": torch.ones(4, 48)},
        {"target_modules": ["qkv_proj"]},
        ["holds the tensor", "qkv_proj.lora_A.weight", "stacked in one"],
    ),
    "another rank": (TENSORS, {"r": 3}, ["down_proj.lora_A.weight", "has shape [4, 80]", "[3, 80]", "rank_pattern"]),
    "another width": (
        {**TENSORS, f"{PREFIX}{QUERY}.lora_A.weight": torch.ones(4, 50)},
        {},
        ["has shape [4, 50]", "[4, 48]", "trained on organisation/base"],
    ),
    "a vocabulary that was resized": (
        {**TENSORS, f"{PREFIX}lm_head.weight": torch.ones(99, 48)},
        {},
        ["lm_head.weight", "[99, 48]", "[97, 48]", "vocabulary"],
    ),
    "whole numbers": (
        {**TENSORS, f"{PREFIX}{QUERY}.lora_A.weight": torch.ones(4, 48, dtype=torch.int32)},
        {},
        ["has type I32", "BF16"],
    ),
    "a norm": (TENSORS, {"target_modules": ["q_proj", "input_layernorm"]}, ["input_layernorm, which is a norm"]),
    "no module": ({}, {"target_modules": ["wq"]}, ["target_modules names no module"]),
    "a bias for a matrix without": (TENSORS, {"lora_bias": True}, ["lora_bias", "down_proj", "no bias"]),
    "another kind": (TENSORS, {"peft_type": "IA3"}, ['peft_type is "IA3"', "only LORA"]),
    "LoHa": (TENSORS, {"peft_type": "LOHA"}, ['peft_type is "LOHA"']),
    "an unknown key": (TENSORS, {"lora_gamma": 1}, ["unknown: lora_gamma = 1"]),
    "PiSSA": (
        TENSORS,
        {"init_lora_weights": "pissa_niter_4"},
        ["init_lora_weights", "changes the base model's weights"],
    ),
    "tokens": (TENSORS, {"trainable_token_indices": [1]}, ["trainable_token_indices is [1]", "not merged"]),
    "other layers": (TENSORS, {"layer_replication": [[0, 2]]}, ["layer_replication", "other layers"]),
    "experts": (TENSORS, {"target_parameters": ["experts.down"]}, ["target_parameters", "experts"]),
    "aLoRA": (TENSORS, {"alora_invocation_tokens": [5]}, ["alora_invocation_tokens", "cannot be merged"]),
    "dora and bias": (TENSORS, {"use_dora": True, "lora_bias": True}, ["use_dora and lora_bias"]),
    "no modules": (TENSORS, {"target_modules": None}, ["target_modules is null", "list of names"]),
    "no rank": (TENSORS, {"r": ...}, ["'r' is missing"]),
    "an expression without end": (TENSORS, {"target_modules": "(.*)*(.*)+x"}, ["could take very long"]),
    "options without end": (TENSORS, {"target_modules": ".?" * 40 + "x"}, ["could take very long"]),
    "no expression": (TENSORS, {"target_modules": "(q_proj"}, ["which is none"]),
    "a rank of nothing": (TENSORS, {"rank_pattern": {"q_proj": 0}}, ["rank_pattern", "above zero"]),
    "layers of another name": (
        TENSORS,
        {"layers_pattern": "h", "layers_to_transform": [1]},
        ["layers_pattern", "'layers'"],
    ),
    "not a number": (
        {**TENSORS, f"{PREFIX}{QUERY}.lora_A.weight": torch.full((4, 48), math.nan)},
        {},
        [f"{QUERY}.lora_A.weight in", "not finite"],
    ),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_what_does_not_fit_is_refused_by_name(base: Path, tmp_path: Path, what: str) -> None:
    tensors, changes, said = WRONG[what]
    with pytest.raises(UsageError) as caught:
        merged(base, tmp_path, tensors, **changes).read(f"{QUERY}.weight")
    assert [part for part in said if part not in str(caught.value)] == [], str(caught.value)


def test_files_that_are_not_there(base: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape("no adapter that peft saved")):
        open_checkpoint(str(base), lora=tmp_path)
    adapter = write_adapter(tmp_path / "adapter", TENSORS)
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(UsageError, match="pickled weights can run code"):
        open_checkpoint(str(base), lora=adapter)
    (adapter / "adapter_model.bin").unlink()
    with pytest.raises(UsageError, match=r"has no adapter_model\.safetensors"):
        open_checkpoint(str(base), lora=adapter)


def test_what_is_told(base: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    told = " ".join(merged(base, tmp_path).notes)
    assert "merged into 6 of" in told and "trained on organisation/base" in told and "tokenizer.json" in told
    same = merged(base, tmp_path / "same", base_model_name_or_path=f"organisation/{base.name}")
    assert "trained on" not in " ".join(same.notes)


def test_a_config_of_the_first_peft_is_read(base: Path, tmp_path: Path) -> None:
    first = {"r", "lora_alpha", "target_modules", "peft_type", "bias", "base_model_name_or_path", "fan_in_fan_out"}
    checkpoint = merged(base, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    kept = {key: value for key, value in config.items() if key in first}
    (tmp_path / "adapter_config.json").write_text(json.dumps({**kept, "enable_lora": None, "merge_weights": False}))
    again = open_checkpoint(str(base), lora=tmp_path)
    assert torch.equal(again.read(f"{QUERY}.weight"), checkpoint.read(f"{QUERY}.weight"))
