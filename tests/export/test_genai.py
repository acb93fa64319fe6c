"""A bundle in onnxruntime-genai gives what blockexport's own decoder gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
import pytest
import torch

from blockexport.runtime.open import open_decoder
from tests.exported import export, random_model

ROWS = [[3, 1, 4, 1, 5, 9], [8, 7, 1], [50]]


@pytest.mark.parametrize("last_logits_only", [False, True])
def test_right_padded_rows_of_unequal_length(tmp_path: Path, last_logits_only: bool) -> None:
    """Logits after the prompts and after a step, of every row, against the row by itself."""
    export(random_model(), tmp_path, slots=29, last_logits_only=last_logits_only)
    model = og.Model(str(tmp_path))
    pad = json.loads((tmp_path / "genai_config.json").read_text())["model"]["pad_token_id"]
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=20, batch_size=len(ROWS))
    generator = og.Generator(model, parameters)
    width = max(map(len, ROWS))
    generator.append_tokens(np.array([row + [pad] * (width - len(row)) for row in ROWS], dtype=np.int32))
    first = torch.from_numpy(np.array(generator.get_logits()))[:, -1]
    generator.generate_next_token()
    second = torch.from_numpy(np.array(generator.get_logits()))[:, -1]
    decoder = open_decoder(tmp_path, threads=1)
    for row, ids in enumerate(ROWS):
        decoder.reset()
        alone = decoder.prefill(torch.tensor([ids]))[0, -1]
        torch.testing.assert_close(first[row], alone, rtol=1e-4, atol=1e-4)
        token = alone.argmax()
        torch.testing.assert_close(second[row], decoder.step(token.view(1, 1))[0, -1], rtol=1e-4, atol=1e-4)
