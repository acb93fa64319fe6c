"""A bundle in onnxruntime-genai against blockexport's own decoder: right-padded rows of unequal length, and a step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
import torch

from blockexport.runtime.open import open_decoder


def assert_genai_gives_the_same(bundle: Path, rows: Sequence[Sequence[int]]) -> None:
    """Logits after the prompts and after a step, of every row, against the row by itself."""
    model = og.Model(str(bundle))
    pad = json.loads((bundle / "genai_config.json").read_text())["model"]["pad_token_id"]
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=20, batch_size=len(rows))
    generator = og.Generator(model, parameters)
    width = max(map(len, rows))
    generator.append_tokens(np.array([[*row, *[pad] * (width - len(row))] for row in rows], dtype=np.int32))
    first = torch.from_numpy(np.array(generator.get_logits()))[:, -1]
    generator.generate_next_token()
    second = torch.from_numpy(np.array(generator.get_logits()))[:, -1]
    decoder = open_decoder(bundle, threads=1)
    for row, ids in enumerate(rows):
        decoder.reset()
        alone = decoder.prefill(torch.tensor([list(ids)]))[0, -1]
        torch.testing.assert_close(first[row], alone, rtol=1e-4, atol=1e-4)
        token = alone.argmax()
        torch.testing.assert_close(second[row], decoder.step(token.view(1, 1))[0, -1], rtol=1e-4, atol=1e-4)
