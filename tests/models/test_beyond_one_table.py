"""LongRoPE and dynamic RoPE on both sides of the original range: what transformers does, and what a file can do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from tests.transformers_models import POSITIONS, make_model, save_model, some_ids

LENGTH, STEPS = POSITIONS + 11, 3
IDS = some_ids(LENGTH + STEPS)


def ours(folder: Path, slots: int, *calls: int) -> torch.Tensor:
    """Logits of every position, of calls of so many tokens, one after another."""
    checkpoint = open_checkpoint(str(folder))
    model = load_model(checkpoint, torch.float32, slots)
    past, found, start = empty_cache(checkpoint.config, len(IDS), slots, torch.float32), list[torch.Tensor](), 0
    for length in calls:
        chosen = torch.arange(start, start + length)
        logits, past = model(IDS[:, chosen], chosen.expand(len(IDS), -1), past)
        found.append(logits)
        start += length
    return torch.cat(found, 1)


@pytest.mark.parametrize("family", ["phi3-longrope", "llama-dynamic"])
def test_a_text_that_grows_across_the_range_needs_all_of_its_keys_anew(family: str, tmp_path: Path) -> None:
    """Up to the last position of the range a file is right; one token more, and transformers' early logits change."""
    theirs = save_model(make_model(family), tmp_path)
    within = theirs(IDS[:, :POSITIONS]).logits
    torch.testing.assert_close(ours(tmp_path, POSITIONS, POSITIONS - 1, 1), within, rtol=1e-4, atol=1e-4)
    beyond = theirs(IDS[:, : POSITIONS + 1]).logits[:, :POSITIONS]
    assert (beyond - within).abs().max() > 0.1 * within.std()


def test_dynamic_rope_has_a_table_for_each_length_beyond_it(tmp_path: Path) -> None:
    theirs: Any = make_model("llama-dynamic")
    one, other = (theirs(IDS[:, :length]).logits[:, :POSITIONS] for length in (POSITIONS + 1, LENGTH))
    assert (one - other).abs().max() > 1e-3 * one.std()


def test_longrope_has_one_table_for_all_texts_beyond_it_and_a_config_can_ask_for_it(tmp_path: Path) -> None:
    """As `docs/reference/families.md` has it, for texts whose first call alone is longer than the original range."""
    theirs = save_model(make_model("phi3-longrope"), tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    longest, original = data["max_position_embeddings"], data["original_max_position_embeddings"]
    assert (longest, original) == (4 * POSITIONS, POSITIONS)
    rope = data["rope_parameters"]
    rope["short_factor"] = rope["long_factor"]
    rope["attention_factor"] = math.sqrt(1 + math.log(longest / original) / math.log(original))
    data["original_max_position_embeddings"] = rope["original_max_position_embeddings"] = longest
    (tmp_path / "config.json").write_text(json.dumps(data))

    found = ours(tmp_path, LENGTH + STEPS, LENGTH, *(1,) * STEPS)
    torch.testing.assert_close(found, theirs(IDS).logits, rtol=1e-4, atol=1e-4)
    # Within the range it is another model.
    within = theirs(IDS[:, :POSITIONS]).logits
    assert (found[:, :POSITIONS] - within).abs().max() > 0.1 * within.std()
