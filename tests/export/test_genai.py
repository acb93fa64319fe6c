"""A bundle in onnxruntime-genai gives what blockexport's own decoder gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnxruntime_genai as og
import pytest

from blockexport.cli.main import main
from blockexport.runtime.open import open_decoder
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
from blockexport.runtime.text.generate import Generation
from blockexport.runtime.text.sampling import SamplingOptions
from tests.exported import EVERYTHING, export, gainful
from tests.genai_rows import assert_genai_gives_the_same
from tests.support import shared_path
from tests.zoo import models

PROMPTS = ("Once upon a time", "Lily and  Tom\n went", "", " The dog", "a</s>b", "é 模 🙂")

ROWS = [[3, 1, 4, 1, 5, 9], [8, 7, 1], [50]]


@pytest.mark.parametrize(
    ("model", "last_logits_only"),
    [
        ("everything", False),
        ("everything", True),
        ("norms after", False),
        ("scaled", False),
        ("parallel", False),
        ("learned positions", False),
    ],
)
def test_right_padded_rows_of_unequal_length(tmp_path: Path, model: str, last_logits_only: bool) -> None:
    """Logits after the prompts and after a step, of every row, against the row by itself."""
    config = replace(models(EVERYTHING)[model], model_type="gpt2")  # whose graphs genai expects to be of another form
    export(gainful(config), tmp_path, slots=29, last_logits_only=last_logits_only)
    assert_genai_gives_the_same(tmp_path, ROWS)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_model_with_a_bos_answers_as_generate_does(stories: Path, prompt: str) -> None:
    """The recipe of docs/guides/python.md: without its option onnxruntime-genai leaves the token out."""
    model = og.Model(str(stories))
    tokenizer, ours = og.Tokenizer(model), BundleTokenizer(stories)
    ids = ours.encode(prompt)
    assert ids[0] == 1 and (not prompt or tokenizer.encode(prompt).tolist() == ids[1:])
    tokenizer.update_options(add_special_tokens="true")
    assert tokenizer.encode(prompt).tolist() == ids
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=len(ids) + 20)
    generator = og.Generator(model, parameters)
    generator.append_tokens(tokenizer.encode(prompt))
    while not generator.is_done():
        generator.generate_next_token()
    answer = list(Generation(open_decoder(stories, threads=1), ids, SamplingOptions(), ours.stop_ids, 20))
    assert generator.get_sequence(0).tolist()[len(ids) :] == answer


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stories") / "bundle"
    source = str(shared_path("models/stories260K"))
    assert main(["onnx", source, "-o", str(folder), "-M", "64", "--no-compare", "--quiet"]) == 0
    return folder
