"""The audit of merged weights passes what the merger writes, in every type, and names what is wrong otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport.compare.audits.merged_weights import MergedWeights, merged_weights
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from tests.lora_folders import PREFIX, low_rank, low_ranks, write_adapter
from tests.small_models import small_config, small_weights, write_folder

CONFIG = small_config("qwen2")
WEIGHTS = small_weights(CONFIG)
QUERY = "model.layers.1.self_attn.q_proj"
NAME = f"{QUERY}.weight"
TENSORS = low_ranks(WEIGHTS, "q_proj", "down_proj")
_ENDS = {
    f"{PREFIX}model.embed_tokens.lora_embedding_A": torch.randn(4, 97),
    f"{PREFIX}model.embed_tokens.lora_embedding_B": torch.randn(48, 4),
    f"{PREFIX}model.embed_tokens.lora_magnitude_vector": torch.rand(48) + 1,
    **low_rank(WEIGHTS, QUERY),
    f"{PREFIX}{QUERY}.lora_magnitude_vector.weight": torch.rand(60) + 1,
}
ADAPTERS: dict[str, tuple[dict[str, torch.Tensor], dict[str, Any]]] = {
    "plain": (TENSORS, {}),
    "patterns": (TENSORS, {"alpha_pattern": {"q_proj": 9, "1.mlp.down_proj": 2}, "use_rslora": True}),
    "dora": (_ENDS, {"use_dora": True, "target_modules": ["embed_tokens", QUERY]}),
    "biases": (
        {**low_rank(WEIGHTS, QUERY), f"{PREFIX}{QUERY}.lora_B.bias": torch.randn(60)},
        {"lora_bias": True, "target_modules": [QUERY]},
    ),
    "whole": (
        {**low_rank(WEIGHTS, QUERY), f"{PREFIX}lm_head.weight": torch.randn(97, 48)},
        {"target_modules": [QUERY], "modules_to_save": ["lm_head"]},
    ),
}


def opened(folder: Path, adapter: str) -> tuple[Checkpoint, MergedWeights]:
    base = write_folder(folder / "base", CONFIG, WEIGHTS)
    tensors, changes = ADAPTERS[adapter]
    checkpoint = open_checkpoint(str(base), lora=write_adapter(folder / "adapter", tensors, **changes))
    audit = merged_weights(checkpoint)
    assert audit is not None
    return checkpoint, audit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("adapter", list(ADAPTERS))
def test_what_is_merged_passes_and_one_wrong_value_does_not(tmp_path: Path, adapter: str, dtype: torch.dtype) -> None:
    checkpoint, audit = opened(tmp_path, adapter)
    changed = [name for name in checkpoint.entries if audit.changes(name)]
    assert len(changed) == {"plain": 6, "patterns": 6, "dora": 2, "biases": 2, "whole": 2}[adapter]
    for name in changed:
        values = checkpoint.read(name).to(dtype)
        assert audit.fault(name, values) is None
        wrong = values.clone()
        wrong.view(-1)[7] *= 1 + 4 * torch.finfo(dtype).eps
        said = audit.fault(name, wrong)
        assert said is not None and said.startswith(f"{name} is not what base model and adapter give in 1 of"), said


def test_mistakes_of_merging_are_named(tmp_path: Path) -> None:
    _, audit = opened(tmp_path, "plain")
    before = WEIGHTS[NAME]
    up, down = (TENSORS[f"{PREFIX}{QUERY}.lora_{part}.weight"] for part in "BA")
    said = {
        "left out": audit.fault(NAME, before),
        "alpha alone": audit.fault(NAME, before + 6 * (up @ down)),
        "without a factor": audit.fault(NAME, before + up @ down),
        "subtracted": audit.fault(NAME, before - 1.5 * (up @ down)),
        "of another layer": audit.fault(NAME, before + 1.5 * (up.flip(1) @ down)),
        "nothing": audit.fault(NAME, torch.full_like(before, float("nan"))),
    }
    clauses = {what: (text or "").removeprefix(f"{NAME} ") for what, text in said.items()}
    assert clauses["left out"] == "is the base model's, without the adapter"
    assert clauses["alpha alone"] == "has 4 times the adapter's change"
    assert clauses["without a factor"] == "has 0.6667 times the adapter's change"
    assert clauses["subtracted"] == "has -1 times the adapter's change"
    assert clauses["of another layer"].startswith("is not what base model and adapter give in 2,")
    assert "in 2,880 of 2,880 values" in clauses["nothing"]


def test_nothing_of_the_merger_is_used() -> None:
    source = Path(str(MergedWeights.__init__.__code__.co_filename)).read_text()
    assert not [
        word for word in ("adapter_tensors", "adapter_config import", "lora_merge") if f"checkpoints.{word}" in source
    ]
    assert "formats.adapter_config" not in source


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_pieces_are_the_whole(tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, audit = opened(tmp_path, "dora")
    monkeypatch.setattr("blockexport.compare.audits.merged_weights._ROWS", 48 * rows)
    for name in ("model.embed_tokens.weight", NAME):
        assert audit.fault(name, checkpoint.read(name)) is None
        assert audit.fault(name, checkpoint.read(name) * 1.01) is not None
