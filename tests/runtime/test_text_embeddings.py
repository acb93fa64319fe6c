"""Embedding models and rerankers, as `docs/guides/embeddings.md` uses them: against transformers, a row at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.nn import functional as F

from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.precision import Precision
from blockexport.runtime.open import open_decoder
from tests.exported import export

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
ROWS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 90, 91, 92, 93], [8, 8, 3, 6, 50, 51, 52]])
LENGTHS = torch.tensor([7, 3, 4])
YES, NO = 11, 40


def saved(kind: str, folder: Path) -> transformers.PreTrainedModel:
    """A model with random weights, saved as publishers save those without a head."""
    torch.manual_seed(1)
    family, _, _ = kind.partition("For")
    config = getattr(transformers, f"{family.removesuffix('Model')}Config")(**SIZES, tie_word_embeddings="Qwen" in kind)
    model: transformers.PreTrainedModel = getattr(transformers, kind)(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("kind", "precision", "tolerance"),
    [
        ("Qwen3Model", Precision.FP32, 1e-5),
        pytest.param("Qwen3Model", Precision.FP16, 5e-3, marks=pytest.mark.full),
        ("MistralModel", Precision.FP32, 1e-5),
    ],
)
@torch.inference_mode()
def test_pooled_hidden_states_are_those_of_transformers(
    tmp_path: Path, kind: str, precision: Precision, tolerance: float
) -> None:
    """Last token and mean, of right-padded rows whose padding is other tokens."""
    model = saved(kind, tmp_path / "model")
    described = tmp_path / "model" / "config.json"
    described.write_text(json.dumps({**json.loads(described.read_text()), "tie_word_embeddings": True}))
    export(open_checkpoint(str(tmp_path / "model")), tmp_path / "bundle", precision, headless=True)

    table_VD = load_file(tmp_path / "model" / "model.safetensors")["embed_tokens.weight"]
    decoder = open_decoder(tmp_path / "bundle", threads=1)
    decoder.reset(len(ROWS))
    states_BSD = decoder.prefill(table_VD[ROWS].to(decoder.dtype), LENGTHS).float()
    last_BD = F.normalize(states_BSD[torch.arange(len(ROWS)), LENGTHS - 1], dim=-1)
    is_token_BS1 = (torch.arange(ROWS.shape[1]) < LENGTHS[:, None])[..., None]
    mean_BD = F.normalize(states_BSD.where(is_token_BS1, 0).sum(1) / LENGTHS[:, None], dim=-1)

    for row, length in enumerate(LENGTHS.tolist()):
        alone_SD = model(input_ids=ROWS[row : row + 1, :length]).last_hidden_state[0]
        for found, pooled in ((last_BD[row], alone_SD[-1]), (mean_BD[row], alone_SD.mean(0))):
            torch.testing.assert_close(found, pooled / pooled.norm(), rtol=0, atol=tolerance)


@torch.inference_mode()
def test_a_rerankers_scores_are_those_of_transformers(tmp_path: Path) -> None:
    """The logits of `yes` and `no` after each row's last token."""
    model = saved("Qwen3ForCausalLM", tmp_path / "model")
    export(open_checkpoint(str(tmp_path / "model")), tmp_path / "bundle", last_logits_only=True)

    decoder = open_decoder(tmp_path / "bundle", threads=1)
    decoder.reset(len(ROWS))
    scores_B = decoder.prefill(ROWS, LENGTHS)[:, 0, [NO, YES]].softmax(-1)[:, 1]

    for row, length in enumerate(LENGTHS.tolist()):
        logits_V = model(input_ids=ROWS[row : row + 1, :length]).logits[0, -1]
        expected = logits_V[YES].exp() / (logits_V[YES].exp() + logits_V[NO].exp())
        torch.testing.assert_close(scores_B[row], expected, rtol=0, atol=1e-5)
    assert scores_B.unique().numel() == len(ROWS)
