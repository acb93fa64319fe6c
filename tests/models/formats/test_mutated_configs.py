"""A config with a mistake in it is read as transformers reads it, or refused by the key: never silently otherwise."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import FAMILIES as RECORDS
from blockexport.models.formats.config_hf_keys import HARMLESS
from tests.mutated_configs import KINDS, Mutant, mutant
from tests.transformers_models import FAMILIES

MUTANTS = 300
FEW = range(len(FAMILIES))
"""In `make test`: every variant, and every kind."""

LENGTH = 96
LARGEST = 10_000_000  # parameters of a model that is run: a key that is absent has the default of a large one

Weights = dict[str, torch.Tensor]


def theirs(data: dict[str, Any], folder: Path) -> Any:
    """The model that transformers makes of a config, with weights that follow from their names and shapes; None where
    it stops or the model is large."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(data))
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        how = "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"
        with torch.device("meta"):
            sketch = transformers.AutoModelForCausalLM.from_config(config)
        if sum(one.numel() for one in sketch.parameters()) > LARGEST:
            return None
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=how)
        model.float().eval().requires_grad_(False)
        starts_at_0 = {name for name, one in model.named_parameters() if name.endswith("norm.weight") and not one.any()}
        for name, parameter in model.named_parameters():
            parameter.copy_(_values(name, parameter.shape) - float(name in starts_at_0))
        model(torch.zeros(1, 1, dtype=torch.int64))
    except Exception:  # whatever stops it
        return None
    return model


def _values(name: str, shape: torch.Size) -> torch.Tensor:
    seed = hashlib.sha256(f"{name} {list(shape)}".encode()).digest()[:4]
    generator = torch.Generator().manual_seed(int.from_bytes(seed, "little"))
    if name.endswith("weight") and len(shape) == 1:
        return torch.rand(shape, generator=generator) * 1.5 + 0.25
    return torch.randn(shape, generator=generator) * 0.2


def weights_of(model: Any) -> Weights:
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def shapes_of(weights: Weights) -> dict[str, torch.Size]:
    return {name: one.shape for name, one in weights.items()}


def ours(folder: Path, weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids and the logits of this project's reading of the folder with those weights. Raises UsageError."""
    save_file(weights, folder / "model.safetensors")
    checkpoint = open_checkpoint(str(folder))
    slots = min(LENGTH, checkpoint.config.reach)
    ids_BS = torch.randint(0, checkpoint.config.vocab_size, (1, slots), generator=torch.Generator().manual_seed(3))
    past = empty_cache(checkpoint.config, 1, slots, torch.float32)
    return ids_BS, load_model(checkpoint, torch.float32, slots)(ids_BS, torch.arange(slots)[None], past)[0]


def outcome(one: Mutant, folder: Path) -> str:
    """`right`, or the message of the refusal."""
    sound = theirs(one.sound, folder / "sound")
    model = theirs(one.data, folder / "mutant")
    harmless = HARMLESS | RECORDS[one.sound["model_type"]].ignored.keys()
    if model is None and not harmless.isdisjoint(one.names):
        model = sound
    before = weights_of(sound)
    if model is None or shapes_of(weights_of(model)) != shapes_of(before):
        with pytest.raises(UsageError) as refusal:
            ours(folder / "mutant", before)
        if model is None:
            return str(refusal.value)
    try:
        ids_BS, logits_BSV = ours(folder / "mutant", weights_of(model))
    except UsageError as error:
        return str(error)
    torch.testing.assert_close(logits_BSV, model(ids_BS).logits, rtol=1.3e-6, atol=3e-5)
    return "right"


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in FEW else pytest.mark.full) for seed in range(MUTANTS)]
)
def test_a_mistake_in_a_config_is_refused_by_its_key_or_changes_nothing(seed: int, tmp_path: Path) -> None:
    one = mutant(seed)
    said = outcome(one, tmp_path)
    assert said == "right" or any(name in said for name in one.names), f"{one}: {said}"


def test_the_mutants_are_of_every_variant_and_every_kind() -> None:
    for seeds in (FEW, range(MUTANTS)):
        drawn = [mutant(seed) for seed in seeds]
        assert {one.variant for one in drawn} == set(FAMILIES) and {one.kind for one in drawn} == set(KINDS)
