"""Embedding models and rerankers, as `docs/guides/embeddings.md` uses them: against transformers, a row at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from safetensors.torch import load_file

from blockexport.bundle_export import export_bundle
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.interface import Ends
from blockexport.models.precision import Precision
from blockexport.runtime.open import open_decoder
from tests.exported import export, random_model
from tests.support import shared_path

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
REFERENCE = Path(sys.prefix) / "sentence-transformers-reference"
PROGRAM = Path(__file__).parent / "sentence_transformers_vectors.py"


def saved(kind: str, folder: Path) -> transformers.PreTrainedModel:
    """A model with random weights, saved as publishers save those without a head."""
    torch.manual_seed(1)
    family, _, _ = kind.partition("For")
    config = getattr(transformers, f"{family.removesuffix('Model')}Config")(**SIZES, tie_word_embeddings="Qwen" in kind)
    model: transformers.PreTrainedModel = getattr(transformers, kind)(config).eval()
    model.save_pretrained(folder)
    return model


def write_modules(folder: Path, mode: str, *, normalize: bool) -> None:
    """The files of sentence-transformers', as Qwen3-Embedding has them."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")][: 2 + normalize]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    said = {"word_embedding_dimension": SIZES["hidden_size"], f"pooling_mode_{mode}": True, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": False, **said}))


@pytest.mark.parametrize(
    ("kind", "mode", "normalize", "precision", "tolerance"),
    [
        ("Qwen3Model", "lasttoken", True, Precision.FP32, 1e-5),
        ("MistralModel", "mean_tokens", False, Precision.FP32, 1e-4),
        pytest.param("Qwen3Model", "mean_tokens", True, Precision.FP16, 5e-3, marks=pytest.mark.full),
        pytest.param("MistralModel", "lasttoken", True, Precision.FP32, 1e-5, marks=pytest.mark.full),
    ],
)
@torch.inference_mode()
def test_embeddings_are_those_of_transformers_pooled_by_hand(
    tmp_path: Path, kind: str, mode: str, normalize: bool, precision: Precision, tolerance: float
) -> None:
    """Of right-padded rows whose padding is other tokens; neither checkpoint has a head, and Mistral's is not tied."""
    model = saved(kind, tmp_path / "model")
    write_modules(tmp_path / "model", mode, normalize=normalize)
    made = export_bundle(tmp_path / "model", tmp_path / "bundle", task="embed", precision=precision, compare=False)

    decoder = open_decoder(made.folder, threads=1)
    decoder.reset(len(ROWS))
    found_BD = decoder.prefill(ROWS, LENGTHS)[:, 0].float()

    for row, length in enumerate(LENGTHS.tolist()):
        alone_SD = model(input_ids=ROWS[row : row + 1, :length]).last_hidden_state[0]
        pooled_D = alone_SD[length - 1] if mode == "lasttoken" else alone_SD.sum(0) / length
        expected_D = pooled_D / pooled_D.square().sum().sqrt() if normalize else pooled_D
        torch.testing.assert_close(found_BD[row], expected_D, rtol=0, atol=tolerance)


@pytest.mark.full
@pytest.mark.parametrize("pooling", ["lasttoken", "mean"])
@pytest.mark.parametrize("normalize", ["yes", "no"])
def test_embeddings_are_those_of_sentence_transformers(tmp_path: Path, pooling: str, normalize: str) -> None:
    """Of a model that it has saved, with its tokenizer, and texts of which the longest is cut."""
    if not REFERENCE.is_dir():
        pytest.skip(f"{REFERENCE} has no sentence-transformers: `make {Path(sys.prefix).name}/.with-references` does")
    environment = {**os.environ, "PYTHONPATH": str(REFERENCE), "HF_HUB_OFFLINE": "1"}
    source, saved = str(shared_path("models/stories260K")), str(tmp_path / "model")
    command = [sys.executable, "-P", str(PROGRAM), source, saved, pooling, normalize]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    found = load_file(tmp_path / "model" / "vectors.safetensors")
    assert found["lengths"].tolist() == [15, 4, 40]

    made = export_bundle(saved, tmp_path / "bundle", task="embed", compare=False)
    assert made.manifest.max_sequence_length == 40
    decoder = open_decoder(made.folder, threads=1)
    decoder.reset(len(found["ids"]))
    vectors_BD = decoder.prefill(found["ids"], found["lengths"])[:, 0]
    # The largest difference of all four: 2.4e-6, of vectors of length 11.
    torch.testing.assert_close(vectors_BD, found["vectors"], rtol=0, atol=1e-5)
    assert (found["vectors"].norm(dim=-1) - 1).abs().max() < 1e-5 or normalize == "no"


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


@torch.inference_mode()
def test_onnx_runtime_by_itself_gives_the_same(tmp_path: Path) -> None:
    """As the guide calls it, with either sort of positions for padding; chunks of a text give what one call does."""
    checkpoint = random_model()
    manifest = export(checkpoint, tmp_path / "bundle", ends=Ends.LAST_EMBEDDING)
    decoder = open_decoder(tmp_path / "bundle", threads=1)
    decoder.reset(len(ROWS))
    expected_BD = decoder.prefill(ROWS, LENGTHS)[:, 0]
    decoder.reset(1)
    pieces = [decoder.prefill(ROWS[:1, part]) for part in (slice(0, 3), slice(3, 7))]
    torch.testing.assert_close(pieces[-1][0], expected_BD[:1])

    session = onnxruntime.InferenceSession(tmp_path / "bundle" / "model.onnx")
    columns_S = np.arange(ROWS.shape[1])
    repeated_BS = np.minimum(columns_S, LENGTHS[:, None].numpy() - 1)
    zeros_BS = np.where(columns_S < LENGTHS[:, None].numpy(), columns_S, 0)
    for positions_BS in (repeated_BS, zeros_BS):
        feeds = {"input_ids": ROWS.numpy(), "position_ids": positions_BS}
        feeds |= {port.name: np.zeros((3, *map(int, port.shape[1:])), port.dtype) for port in manifest.inputs[2:]}
        (found_BD,) = session.run(["embeddings"], feeds)
        torch.testing.assert_close(torch.from_numpy(found_BD), expected_BD)
