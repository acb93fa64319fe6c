"""Adapters of families that stack projections, turn matrices or call modules otherwise: merged as peft sees the model.

The base model's tensors are those that transformers saves, changed in place here and read back;
`test_lora_against_peft.py` holds the same against peft.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockexport.compare.audits.merged_weights import merged_weights
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from tests.lora_folders import PREFIX, write_adapter
from tests.made_once import MadeOnce
from tests.small_models import Weights
from tests.transformers_models import make_model, save_model

LAYER = {"phi3": "model.layers.1", "gpt2": "transformer.h.1", "gpt_neox": "gpt_neox.layers.1", "phi": "model.layers.1"}
TARGETS = {
    "phi3": ("self_attn.qkv_proj", "mlp.gate_up_proj"),
    "gpt2": ("attn.c_attn", "mlp.c_proj"),
    "gpt_neox": ("attention.query_key_value", "mlp.dense_h_to_4h"),
    "phi": ("self_attn.dense", "mlp.fc2"),
}
RANK, SCALING = 4, 6 / 4


@pytest.fixture(params=list(TARGETS))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def base(family: str, made_once: MadeOnce) -> Path:
    return made_once.path(f"stacked-{family}", lambda folder: save_model(make_model(family), folder))


def modules(family: str) -> list[str]:
    return [f"{LAYER[family]}.{name}" for name in TARGETS[family]]


def adapter_of(family: str, base: Path) -> Weights:
    """Low-rank parts of the targets of one layer, as peft stores them: of [in, out] matrices too by [out, in]."""
    stored, found = load_file(base / "model.safetensors"), Weights()
    generator = torch.Generator().manual_seed(4)
    for module in modules(family):
        shape = stored[f"{module}.weight"].shape
        rows, columns = reversed(shape) if family == "gpt2" else shape
        found[f"{PREFIX}{module}.lora_A.weight"] = torch.randn((RANK, columns), generator=generator) * 0.3
        found[f"{PREFIX}{module}.lora_B.weight"] = torch.randn((rows, RANK), generator=generator) * 0.3
    return found


def test_the_stored_matrix_gets_the_product(family: str, base: Path, tmp_path: Path) -> None:
    tensors, stored = adapter_of(family, base), load_file(base / "model.safetensors")
    for module in modules(family):
        down, up = (tensors[f"{PREFIX}{module}.lora_{part}.weight"].double() for part in "AB")
        change = SCALING * (up @ down)
        stored[f"{module}.weight"] = (
            stored[f"{module}.weight"].double() + (change.T if family == "gpt2" else change)
        ).float()
    by_hand = tmp_path / "by hand"
    shutil.copytree(base, by_hand)
    save_file(stored, by_hand / "model.safetensors")
    wanted = open_checkpoint(str(by_hand))
    adapter = write_adapter(
        tmp_path / "adapter",
        tensors,
        target_modules=list(TARGETS[family]),
        layers_to_transform=[1],
    )
    found = open_checkpoint(str(base), lora=adapter)
    audit = merged_weights(found)
    assert audit is not None and found.entries.keys() == wanted.entries.keys()
    for name in wanted.entries:
        values = found.read(name)
        torch.testing.assert_close(values, wanted.read(name), rtol=2**-22, atol=1e-7)
        assert audit.fault(name, values) is None
        assert audit.changes(name) is not torch.equal(values, open_checkpoint(str(base)).read(name))
    query = "model.layers.1.self_attn.q_proj.weight"
    if audit.changes(query):  # the rows of another head
        assert audit.fault(query, found.read(query).roll(16, 0)) is not None


def test_whole_modules_take_the_place_of_their_parts(family: str, base: Path, tmp_path: Path) -> None:
    whole, other = modules(family)
    stored, tensors = load_file(base / "model.safetensors"), adapter_of(family, base)
    kept = {name: value for name, value in tensors.items() if other in name}
    saved = {name: 2 * value for name, value in stored.items() if name.startswith(f"{whole}.")}
    adapter = write_adapter(
        tmp_path,
        {**kept, **{PREFIX + name: value for name, value in saved.items()}},
        target_modules=[other],
        modules_to_save=[whole],
    )
    found, before = open_checkpoint(str(base), lora=adapter), open_checkpoint(str(base))
    changed = [name for name in found.entries if torch.equal(found.read(name), 2 * before.read(name))]
    parts = {"phi3": 3, "gpt2": 6, "gpt_neox": 6, "phi": 2}  # with the biases, where there are some
    assert len(changed) == parts[family]
    audit = merged_weights(found)
    assert audit is not None and all(audit.fault(name, found.read(name)) is None for name in changed)


def test_a_tensor_too_few_or_too_many_is_named_as_the_adapter_has_it(family: str, base: Path, tmp_path: Path) -> None:
    tensors = adapter_of(family, base)
    targets = {"target_modules": list(TARGETS[family]), "layers_to_transform": [1]}
    first = f"{PREFIX}{modules(family)[0]}.lora_B.weight"
    few = write_adapter(tmp_path / "few", {name: value for name, value in tensors.items() if name != first}, **targets)
    with pytest.raises(UsageError, match=f"lacks the tensor {first}"):
        open_checkpoint(str(base), lora=few)
    extra = first.replace("lora_B", "lora_C")
    many = write_adapter(tmp_path / "many", {**tensors, extra: torch.ones(2, 3)}, **targets)
    with pytest.raises(UsageError, match=f"holds the tensor {extra}"):
        open_checkpoint(str(base), lora=many)
    wide = write_adapter(tmp_path / "wide", {**tensors, first: torch.ones(7, RANK)}, **targets)
    with pytest.raises(UsageError, match=rf"{first} in .* has shape \[7, 4\]"):
        open_checkpoint(str(base), lora=wide)
